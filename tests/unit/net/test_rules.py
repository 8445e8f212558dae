"""Each rule fires where it must and keeps quiet where it must not."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpufabric.net.diagnosis import Finding, diagnose
from gpufabric.net.reading import read
from gpufabric.net.rules import RULES

_DATA = Path(__file__).parents[2] / "data" / "rules" / "examples.toml"
EXAMPLES: dict[str, Any] = tomllib.loads(_DATA.read_text())

_PARAMETERS = (
    "# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5"
    " iters: 20 agg iters: 1 validation: 1 graph: 0"
)
_HALF = "     time   algbw   busbw #wrong"
_UNITS = "     (us)  (GB/s)  (GB/s)       "
_COLUMNS = (
    f"#{'out-of-place':>74}{'in-place':>31}",
    f"#       size         count      type   redop    root{_HALF}{_HALF}",
    f"#        (B)    (elements)                          {_UNITS}{_UNITS}",
)


def written_out(text: str) -> str:
    """The short forms of the examples file as lines of the real formats."""
    lines: list[str] = []
    ranks = 0
    for line in text.strip("\n").split("\n"):
        word, _, rest = line.partition(" ")
        if word.startswith("I@"):
            lines.append(f"{word[2:]}:310:327 [0] NCCL INFO {rest}")
        elif word.startswith("W@"):
            lines += ["", f"{word[2:]}:310:327 [0] transport/net_ib.cc:731 NCCL WARN {rest}"]
        elif word == "HEAD":
            hosts, per_host, gpu = rest.split(" ", 2)
            ranks = len(hosts.split(",")) * int(per_host)
            lines += _header(hosts.split(","), int(per_host), gpu)
        elif word == "ROW":
            lines.append(_row(ranks, *rest.split()))
        elif word == "FOOT":
            average, count, verdict = [*rest.split(), "0", "OK"][:3]
            lines += [
                f"# Out of bounds values : {count} {verdict}",
                f"# Avg bus bandwidth    : {average}",
            ]
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _header(hosts: list[str], per_host: int, gpu: str) -> list[str]:
    lines = [
        _PARAMETERS,
        "#",
        "# Using devices",
    ]
    for number, host in enumerate(hosts):
        for device in range(per_host):
            rank = number * per_host + device
            lines.append(
                f"#  Rank {rank:2} Group  0 Pid {1000 + rank:6} on {host:>10} device {device:2}"
                f" [0x{0x1A + device:02x}] {gpu}"
            )
    return [
        *lines,
        "#",
        *_COLUMNS,
    ]


def _row(ranks: int, size: str, busbw: str, wrong: str = "0") -> str:
    algbw = float(busbw) * ranks / (2 * (ranks - 1))
    time = int(size) / algbw / 1000
    half = f"{time:9.2f} {algbw:7.2f} {float(busbw):7.2f} {wrong:>6}"
    return f"{size:>12} {int(size) // 4:>13} {'float':>9} {'sum':>7} {-1:>7} {half} {half}"


def _cases(kind: str) -> list[Any]:
    return [
        pytest.param(code, text, id=f"{code}-{number}")
        for code, example in EXAMPLES.items()
        for number, text in enumerate(example[kind])
    ]


def _findings(code: str, text: str) -> dict[str, Finding]:
    kind = EXAMPLES[code].get("instance_type")
    diagnosis = diagnose(read(written_out(text)), instance_type=kind)
    return {finding.code: finding for finding in diagnosis.findings}


def test_every_rule_has_examples_for_and_against():
    assert {rule.id for rule in RULES} == set(EXAMPLES)
    assert all(example["positive"] and example["negative"] for example in EXAMPLES.values())


def test_no_two_rules_share_an_id():
    ids = [rule.id for rule in RULES]
    assert len(ids) == len(set(ids))


def test_every_rule_says_what_to_do_and_who_says_so():
    for rule in RULES:
        assert rule.cause, rule.id
        assert rule.remedy, rule.id
        assert rule.sources, rule.id
        assert rule.title, rule.id


def test_a_rule_is_explained_only_by_rules_that_exist():
    ids = {rule.id for rule in RULES}
    for rule in RULES:
        assert rule.explained_by <= ids - {rule.id}, rule.id


@pytest.mark.parametrize(("code", "text"), _cases("positive"))
def test_a_rule_fires_on_what_it_is_about(code: str, text: str):
    found = _findings(code, text)
    assert code in found, sorted(found)


@pytest.mark.parametrize(("code", "text"), _cases("negative"))
def test_a_rule_keeps_quiet_on_what_only_looks_like_it(code: str, text: str):
    assert code not in _findings(code, text)


@pytest.mark.parametrize(("code", "text"), _cases("positive"))
def test_evidence_is_a_line_of_the_text(code: str, text: str):
    lines = written_out(text).count("\n")
    for evidence in _findings(code, text)[code].evidence:
        assert 0 <= evidence.lineno <= lines
        assert evidence.text
