"""What is true of NCCL everywhere: variables, results and limits, each with its source."""

import re
from pathlib import Path

import gpufabric.catalog
from gpufabric.catalog import Catalog
from gpufabric.catalog.compile import compile_text

DATA = Path(gpufabric.catalog.__file__).parent / "data"
NCCL = Catalog.shipped().nccl


def test_the_compiled_file_is_what_the_toml_makes():
    text = (DATA / "nccl.toml").read_text(encoding="utf-8")
    compiled = (DATA / "compiled" / "nccl.jsonl").read_text(encoding="utf-8")
    assert compiled == compile_text(text, "nccl.toml")


def test_nccl_is_no_cloud():
    assert "nccl" not in Catalog.shipped().clouds


def test_variables_are_named_once_and_sourced():
    names = [row.name for row in NCCL.rows("variable")]
    assert len(names) == len(set(names))
    assert len(names) > 250
    for row in NCCL.rows("variable"):
        assert re.fullmatch(r"NCCL_[A-Z0-9_]+\*?", row.name), row.name
        assert set(row.sources) <= set(NCCL.sources), row.name
        assert row.sources, row.name


def test_versions_are_versions():
    for row in NCCL.rows("variable"):
        for version in (row.since, row.until):
            assert version is None or re.fullmatch(r"\d+(\.\d+)*", version), row.name


def test_bad_values_are_of_their_variable_and_say_why():
    bad = [(row.name, avoid) for row in NCCL.rows("variable") for avoid in row.bad_values]
    assert {name for name, _ in bad} >= {"NCCL_IB_DISABLE", "NCCL_NET", "NCCL_P2P_DISABLE"}
    for name, avoid in bad:
        assert avoid.name == name
        assert avoid.value
        assert avoid.why
        assert avoid.breaks


def test_what_every_job_gets_is_the_proof_alone():
    (row,) = NCCL.rows("env")
    assert [(var.name, var.value) for var in row.vars] == [("NCCL_DEBUG", "INFO")]


def test_results_are_numbers_with_a_source():
    for row in NCCL.rows("reference"):
        assert row.busbw_gbytes_s is None or 0 < row.busbw_gbytes_s < 2000
        assert row.sources
        assert row.collective
