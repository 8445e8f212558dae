"""RAS reports that are asked for twice, and events."""

from pathlib import Path

from gpufabric.net.diagnosis import Severity, diagnose
from gpufabric.net.reading import read

_DATA = Path(__file__).parents[2] / "data" / "ras"
_ONCE = (_DATA / "mismatch_two_ahead.txt").read_text()


def test_counts_that_differ_once_are_a_note():
    findings = {f.code: f.severity for f in diagnose(read(_ONCE)).findings}
    assert findings["ras_mismatch"] is Severity.NOTE


def test_counts_that_do_not_move_between_two_queries_are_a_fault():
    findings = {f.code: f.severity for f in diagnose(read(_ONCE + "\n" + _ONCE)).findings}
    assert findings["ras_mismatch"] is Severity.ERROR


def test_counts_that_move_between_two_queries_are_a_note():
    later = _ONCE.replace("640", "655").replace("641", "656")
    findings = {f.code: f.severity for f in diagnose(read(_ONCE + "\n" + later)).findings}
    assert findings["ras_mismatch"] is Severity.NOTE


def test_the_last_report_of_a_text_is_the_one_told():
    healthy = (_DATA / "healthy_256.txt").read_text()
    ras = read(_ONCE + "\n" + healthy).ras
    assert ras is not None
    assert ras.n_gpus == 256
    assert ras.mismatch is None


def test_a_json_report_that_is_cut_gives_nothing():
    whole = (_DATA / "mismatch_json_form.txt").read_text()
    assert read(whole).ras is not None
    assert read(whole[: len(whole) // 2]).ras is None


def test_a_process_that_does_not_answer_is_named():
    text = (_DATA / "incomplete_process_lost.txt").read_text()
    finding = next(f for f in diagnose(read(text)).findings if f.code == "ras_mismatch")
    assert "process 60004 on 10.4.1.13" in finding.cause
