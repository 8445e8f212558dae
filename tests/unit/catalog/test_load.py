"""Files of the catalog are read strictly, and every fault says where it is."""

import json
import pickle
from datetime import date
from pathlib import Path

import pytest

from gpufabric.catalog import Catalog
from gpufabric.catalog.load import read_file, read_raw
from gpufabric.catalog.rows import Gpu, PriceRow
from gpufabric.errors import CatalogError

CLOUD = """\
[cloud]
name = "lab"
title = "Our lab"
as_of = 2026-11-30

[[platform]]
name = "vm"
title = "machines"
kind = "vm"
any_type = true
sources = ["https://example.org/lab"]

[[interconnect]]
name = "infiniband"
kind = "infiniband"
scope = "one room"
sources = ["https://example.org/lab"]

[[instance_type]]
name = "node"
gpu = { model = "H100", count = 8, label_gb = 80 }
interconnect = "infiniband"
nics = { model = "ConnectX-7", count = 8, gbps_each = 400, gpudirect = "rdma" }
nvlink = true
sources = ["https://example.org/lab"]
"""


def overlay(tmp_path: Path, text: str, name: str = "lab.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def fault(tmp_path: Path, text: str) -> str:
    with pytest.raises(CatalogError) as caught:
        Catalog.shipped().with_overlays(overlay(tmp_path, text))
    return str(caught.value)


def test_an_overlay_adds_a_cloud(tmp_path):
    catalog = Catalog.shipped().with_overlays(overlay(tmp_path, CLOUD))
    row = catalog.cloud("lab").find_type("NODE")
    assert row is not None
    assert row.gpu == Gpu(model="H100", count=8, label_gb=80)
    assert row.origin == str(tmp_path / "lab.toml")


def test_the_shipped_catalog_is_untouched_by_an_overlay(tmp_path):
    Catalog.shipped().with_overlays(overlay(tmp_path, CLOUD))
    assert "lab" not in Catalog.shipped().clouds


def test_an_overlay_may_be_json(tmp_path):
    body = {"cloud": {"name": "lab", "title": "x", "as_of": "2026-11-30"}}
    path = overlay(tmp_path, json.dumps(body), "lab.json")
    assert Catalog.shipped().with_overlays(path).cloud("lab").row.as_of == date(2026, 11, 30)


def test_a_wrong_field_is_told_with_file_line_field_and_near_miss(tmp_path):
    message = fault(tmp_path, CLOUD.replace("gbps_each", "gbps_eech"))
    line = CLOUD.splitlines().index(next(x for x in CLOUD.splitlines() if x.startswith("nics"))) + 1
    assert f"lab.toml:{line}: instance_type[0].nics.gbps_eech: unknown field" in message
    assert "did you mean gbps_each?" in message


def test_every_fault_of_a_file_is_told_at_once(tmp_path):
    wrong = CLOUD.replace("count = 8, label_gb", 'count = "8", label_gb').replace(
        'kind = "vm"', 'kind = "vmm"'
    )
    message = fault(tmp_path, wrong)
    assert "gpu.count: must be a whole number" in message
    assert "'vmm' is not one of vm, kubernetes" in message


def test_a_missing_field_is_told(tmp_path):
    assert "instance_type[0].interconnect: is missing" in fault(
        tmp_path, CLOUD.replace('interconnect = "infiniband"\n', "")
    )


def test_an_unknown_table_is_told_with_the_near_miss(tmp_path):
    message = fault(tmp_path, CLOUD + "\n[[instance_typ]]\nname = 'x'\n")
    assert "unknown table instance_typ, did you mean instance_type?" in message


def test_a_table_written_once_where_rows_are_meant_is_told(tmp_path):
    assert "must be written [[price]]" in fault(tmp_path, CLOUD + "\n[price]\nusd_hour = 1\n")


def test_a_file_that_names_no_cloud_is_told(tmp_path):
    assert "[cloud] is missing" in fault(tmp_path, "[[price]]\ninstance_type='x'\nusd_hour=1.0\n")


@pytest.mark.parametrize("text", ["[cloud", "= 3", "[cloud]\nname = 'x'\nname = 'y'"])
def test_text_that_is_not_toml_is_a_catalog_error(tmp_path, text):
    assert "not readable" in fault(tmp_path, text)


def test_a_file_that_is_not_there_is_a_catalog_error(tmp_path):
    with pytest.raises(CatalogError, match="cannot be read"):
        Catalog.shipped().with_overlays(tmp_path / "none.toml")


def test_a_truth_value_is_no_number(tmp_path):
    assert "must be a whole number" in fault(
        tmp_path, CLOUD.replace("count = 8, gbps", "count = true, gbps")
    )


PRICE = """
[[price]]
instance_type = "{type}"
usd_hour = {usd}
market = "negotiated"
sources = ["https://example.org/contract"]
"""


def test_a_negotiated_price_stands_before_the_shipped_one(tmp_path):
    text = '[cloud]\nname = "aws"\ntitle = "ours"\nas_of = 2026-11-30\n'
    text += PRICE.format(type="p5.48xlarge", usd=30.5)
    cloud = Catalog.shipped().with_overlays(overlay(tmp_path, text)).cloud("aws")
    assert cloud.prices("p5.48xlarge")[0].usd_hour == 30.5
    assert len(cloud.prices("p5.48xlarge")) > 1


def test_a_price_whose_last_day_is_past_is_refused(tmp_path):
    text = CLOUD + PRICE.format(type="node", usd=3.0) + "until = 2020-01-01\n"
    message = fault(tmp_path, text)
    assert "price[0].until: 2020-01-01 is in the past" in message
    assert f":{len(text.splitlines())}:" in message


def test_a_price_below_zero_is_refused(tmp_path):
    assert "usd_hour: must be above 0" in fault(tmp_path, CLOUD + PRICE.format(type="node", usd=-1))


def test_a_price_of_an_unknown_type_is_refused_with_the_near_miss(tmp_path):
    message = fault(tmp_path, CLOUD + PRICE.format(type="nodee", usd=3.0))
    assert "price[0].instance_type: no type 'nodee' in lab, did you mean node?" in message


def test_a_type_on_an_unknown_interconnect_is_refused(tmp_path):
    message = fault(
        tmp_path, CLOUD.replace('interconnect = "infiniband"', 'interconnect = "infinband"')
    )
    assert "no interconnect 'infinband' in lab, did you mean infiniband?" in message


def test_an_overlay_row_replaces_the_shipped_row_of_its_name(tmp_path):
    text = '[cloud]\nname = "aws"\ntitle = "ours"\nas_of = 2026-11-30\n'
    text += (
        CLOUD[CLOUD.index("[[instance_type]]") :]
        .replace('"node"', '"p5.48xlarge"')
        .replace('"infiniband"', '"efa"')
    )
    cloud = Catalog.shipped().with_overlays(overlay(tmp_path, text)).cloud("aws")
    row = cloud.find_type("p5.48xlarge")
    assert row is not None
    assert row.nics.count == 8
    assert [t.name for t in cloud.types("H100")].count("p5.48xlarge") == 1


def test_rows_are_values():
    row = Catalog.shipped().cloud("aws").find_type("p5.48xlarge")
    assert row is not None
    again = pickle.loads(pickle.dumps(row))  # noqa: S301  our own bytes
    assert again == row
    assert hash(again) == hash(row)
    assert row.but(max_nodes=3) != row
    with pytest.raises(AttributeError, match="immutable"):
        row.name = "x"  # type: ignore[misc]
    with pytest.raises(TypeError, match="needs usd_hour"):
        PriceRow(instance_type="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no"):
        Gpu(model="H100", count=1, memory=80)  # type: ignore[call-arg]


def test_every_row_says_which_file_it_is_from():
    cloud = Catalog.shipped().cloud("aws")
    for table in ("platform", "instance_type", "kubernetes", "env", "price"):
        assert {row.origin for row in cloud.rows(table)} == {"catalog:aws.toml"}


def test_compiled_rows_equal_those_of_the_toml():
    from gpufabric.catalog import index

    data = Path(index.__file__).parent / "data"
    for cloud in Catalog.shipped():
        file = read_file(data / f"{cloud.name}.toml", origin=f"catalog:{cloud.name}.toml")
        for table in file.tables:
            assert cloud.rows(table) == file.rows(table), (cloud.name, table)


def test_an_unknown_cloud_is_told_with_the_near_miss():
    with pytest.raises(CatalogError, match="no cloud 'awz', did you mean aws"):
        Catalog.shipped().cloud("awz")


def test_raw_tables_are_read_without_a_file():
    file = read_raw({"cloud": {"name": "x", "title": "X", "as_of": "2026-01-01"}}, origin="code")
    assert Catalog.shipped().with_file(file).cloud("x").types() == ()
