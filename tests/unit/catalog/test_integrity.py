"""What must hold of every cloud's file: `CatalogIntegrity`, and one class a cloud at the end."""

import re
from datetime import date
from pathlib import Path
from typing import ClassVar

import gpufabric.catalog
from gpufabric.catalog.compile import compile_text
from gpufabric.catalog.load import CatalogFile, read_file
from gpufabric.catalog.rows import Confidence, Evidence

DATA = Path(gpufabric.catalog.__file__).parent / "data"
TODAY = date(2026, 11, 30)
MODELS = {
    *("H100", "H200", "B200", "B300", "GB200", "GB300", "GH200", "A100", "V100", "T4", "L4"),
    *("L40", "L40S", "A10", "A10G", "RTX PRO 6000", "RTX PRO 4500", "MI300X", "MI355X"),
    *("Trn1", "Trn2", "Vera Rubin"),
}
NO_SOURCE_NEEDED = {"discovery", "pitfall"}
PLACEHOLDER = re.compile(r"<[^>]+>|\?\?|\bTODO\b")


class CatalogIntegrity:  # not collected: its name does not start with Test
    cloud: ClassVar[str]
    _read: ClassVar[dict[str, CatalogFile]] = {}

    @property
    def file(self) -> CatalogFile:
        if self.cloud not in self._read:
            self._read[self.cloud] = read_file(DATA / f"{self.cloud}.toml")
        return self._read[self.cloud]

    def all_rows(self) -> list[tuple[str, Evidence]]:
        return [(t, row) for t, rows in self.file.tables.items() for row in rows]

    def types(self) -> dict[str, object]:
        return {row.name: row for row in self.file.rows("instance_type")}

    def test_the_compiled_file_is_what_the_toml_makes(self):
        text = (DATA / f"{self.cloud}.toml").read_text(encoding="utf-8")
        compiled = DATA / "compiled" / f"{self.cloud}.jsonl"
        assert compiled.read_text(encoding="utf-8") == compile_text(text, f"{self.cloud}.toml"), (
            f"stale: python -m gpufabric.catalog.compile {self.cloud}"
        )

    def test_the_file_is_named_after_its_cloud(self):
        assert self.file.cloud.name == self.cloud
        assert self.file.cloud.title
        assert self.file.cloud.as_of <= TODAY

    def test_every_row_is_sourced(self):
        bare = [
            f"{table}: {getattr(row, 'name', row)}"
            for table, row in self.all_rows()
            if not row.sources and table not in NO_SOURCE_NEEDED
        ]
        assert not bare

    def test_every_source_is_known_and_every_known_source_is_used(self):
        used = {s for _, row in self.all_rows() for s in row.sources}
        used |= {s for _, row in self.all_rows() for d in row.disagreement for s in d.sources}
        used |= {s for row in self.file.rows("env") for v in row.vars for s in v.sources}
        used |= {s for row in self.file.rows("vm") for i in row.images for s in i.sources}
        named = {s for s in used if "://" not in s}
        assert not named - set(self.file.sources), "sources that are named but not described"
        assert not set(self.file.sources) - used, "sources that no row uses"

    def test_source_addresses_are_addresses(self):
        wrong = [s.url for s in self.file.sources.values() if s.url and "://" not in s.url]
        assert not wrong

    def test_names_are_unique(self):
        for table in ("instance_type", "platform", "interconnect", "placement", "kubernetes"):
            names = [row.name for row in self.file.rows(table)]
            assert sorted(names) == sorted(set(names)), table
        for table in ("env", "vm", "nic_layout"):
            names = [row.name for row in self.file.rows(table)]
            assert sorted(names) == sorted(set(names)), table

    def test_aliases_name_one_type_each(self):
        owner: dict[str, str] = {}
        for row in self.file.rows("instance_type"):
            for spelling in (row.name, *row.aliases):
                assert owner.setdefault(spelling.lower(), row.name) == row.name, spelling

    def test_what_rows_refer_to_exists(self):
        types, platforms = set(self.types()), {p.name for p in self.file.rows("platform")}
        networks = {i.name for i in self.file.rows("interconnect")}
        placements = {p.name for p in self.file.rows("placement")}
        for row in self.file.rows("instance_type"):
            assert row.interconnect in networks, row.name
            assert set(row.platforms) <= platforms, row.name
            assert set(row.fabric_platforms or ()) <= set(row.platforms), row.name
        for row in self.file.rows("interconnect"):
            assert row.placement is None or row.placement in placements, row.name
        for table in ("nic_layout", "vm", "kubernetes", "env"):
            for row in self.file.rows(table):
                assert set(row.applies_to) <= types | {"*"}, (table, row.name)
                assert row.applies_to, (table, row.name)
        for row in (r for t in ("env", "nic_layout", "price") for r in self.file.rows(t)):
            assert set(row.platforms) <= platforms | {"*"}, row
        ways = {row.name for row in self.file.rows("kubernetes")}
        for row in self.file.rows("env"):
            assert set(row.ways) <= ways, row.name
        for row in self.file.rows("kubernetes"):
            assert row.platform in platforms, row.name
        for row in self.file.rows("price"):
            assert row.instance_type in types, row.instance_type

    def test_models_have_the_one_spelling(self):
        assert {row.gpu.model for row in self.file.rows("instance_type")} <= MODELS

    def test_counts_and_speeds_agree(self):
        for row in self.file.rows("instance_type"):
            nics = row.nics
            assert row.gpu.count >= 1, row.name
            assert row.gpu.fraction is None or 0 < row.gpu.fraction < 1, row.name
            for number in (nics.count, nics.gbps_each, nics.total_gbps, row.frontend.gbps):
                assert number is None or number > 0, row.name
            if nics.count and nics.gbps_each:
                assert nics.total_gbps in (None, nics.count * nics.gbps_each), row.name
            if row.nvlink_domain_gpus:
                assert row.nvlink_domain_gpus == row.gpu.count * row.nvlink_domain_nodes, row.name

    def test_a_layout_has_every_nic_of_its_types(self):
        types = self.types()
        for layout in self.file.rows("nic_layout"):
            fabric = sum(
                len(range(s.index, (s.to_index or s.index) + 1, s.step))
                for s in layout.slots
                if s.role == "fabric"
            )
            for name in types if "*" in layout.applies_to else layout.applies_to:
                row = types[name]
                if row.interconnect == "ethernet":
                    assert fabric == 0, (layout.name, name)
                elif row.nics.count is not None:
                    assert fabric == row.nics.count, (layout.name, name)

    def test_every_type_with_a_fabric_has_its_nics_listed(self):
        listed = {n for row in self.file.rows("nic_layout") for n in row.applies_to}
        missing = [
            row.name
            for row in self.file.rows("instance_type")
            if row.interconnect != "ethernet"
            and row.nics.count is not None
            and row.confidence is not Confidence.INFERRED
            and row.name not in listed
        ]
        assert not missing

    def test_one_layout_serves_a_type_on_a_platform(self):
        seen: set[tuple[str, str]] = set()
        for layout in self.file.rows("nic_layout"):
            for name in layout.applies_to:
                for platform in layout.platforms or ("*",):
                    assert (name, platform) not in seen, (layout.name, name, platform)
                    seen.add((name, platform))

    def test_values_that_are_set_hold_no_placeholder(self):
        for row in self.file.rows("env"):
            for var in row.vars:
                assert not PLACEHOLDER.search(var.value), (row.name, var.name)
                assert re.fullmatch(r"[A-Za-z_]\w*", var.name), (row.name, var.name)
                assert var.why, (row.name, var.name)
            for avoid in row.avoid:
                assert re.fullmatch(r"[A-Za-z_]\w*\*?", avoid.name), (row.name, avoid.name)
                assert avoid.why, (row.name, avoid.name)
        for row in self.file.rows("kubernetes"):
            for text in (*row.requests.values(), *row.annotations.values()):
                assert not PLACEHOLDER.search(text), row.name

    def test_privilege_has_a_reason(self):
        for row in self.file.rows("kubernetes"):
            if row.privileged or row.host_network or row.host_ipc or row.capabilities:
                assert row.privilege_why, row.name

    def test_the_preferred_way_is_one_way(self):
        seen: set[tuple[str, str, int]] = set()
        for row in self.file.rows("kubernetes"):
            for name in row.applies_to:
                key = (row.platform, name, row.preference)
                assert key not in seen, (row.name, key)
                seen.add(key)

    def test_mounts_are_complete_and_named_once(self):
        for row in self.file.rows("kubernetes"):
            containers = {"job", *(c.name for c in (*row.sidecars, *row.init_containers))}
            for mount in row.mounts:
                assert set(mount.containers) <= containers, (row.name, mount.name)
                assert mount.mount_path.startswith("/"), (row.name, mount.name)
                assert (mount.path is None) == (mount.source == "empty_dir"), (row.name, mount.name)

    def test_prices_are_of_the_past_and_above_zero(self):
        for row in self.file.rows("price"):
            assert row.usd_hour > 0
            assert row.as_of is None or row.as_of <= TODAY
            assert row.until is None or row.until >= TODAY, row.instance_type

    def test_inferred_fields_exist(self):
        for _, row in self.all_rows():
            for path in row.inferred:
                value: object = row
                for part in path.split("."):
                    value = getattr(value, part)
                assert value is not None, (row, path)


class TestAWS(CatalogIntegrity):
    cloud = "aws"


class TestOnPremises(CatalogIntegrity):
    cloud = "onprem"


class TestGCP(CatalogIntegrity):
    cloud = "gcp"


class TestRunPod(CatalogIntegrity):
    cloud = "runpod"


class TestLambda(CatalogIntegrity):
    cloud = "lambda"


class TestNebius(CatalogIntegrity):
    cloud = "nebius"


class TestCoreWeave(CatalogIntegrity):
    cloud = "coreweave"


class TestCrusoe(CatalogIntegrity):
    cloud = "crusoe"


class TestTogether(CatalogIntegrity):
    cloud = "together"


class TestDigitalOcean(CatalogIntegrity):
    cloud = "digitalocean"


class TestHyperstack(CatalogIntegrity):
    cloud = "hyperstack"


class TestVerda(CatalogIntegrity):
    cloud = "verda"


class TestVoltagePark(CatalogIntegrity):
    cloud = "voltagepark"


class TestAzure(CatalogIntegrity):
    cloud = "azure"


class TestOCI(CatalogIntegrity):
    cloud = "oci"


def test_every_file_has_its_class():
    checked = {cls.cloud for cls in CatalogIntegrity.__subclasses__()}
    assert {path.stem for path in DATA.glob("*.toml")} - {"nccl"} == checked
