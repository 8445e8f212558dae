"""The lines of one pod's log, however its bytes are cut."""

import datetime as dt
import pickle

import pytest
from attrs import evolve
from attrs.exceptions import FrozenInstanceError
from hypothesis import given
from hypothesis import strategies as st

from gpufabric.backends.kubernetes._podlog import PodLog
from gpufabric.job import LogLine

_BEGAN = 1767225600  # 2026-01-01T00:00:00Z
_ZONES = {"Z": 0, "+02:00": -7200, "-05:30": 19800}
_STEPS = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.sampled_from([0, 0, 0, 1, 999_999_999]),
        st.sampled_from([
            b"step 1", b"", b"\r", b"\xff\x00\xfe", b"Z ", b" " * 40,
            b"2026-01-01T00:00:00.000000000Z of its own",
        ]),
    ),
    max_size=60,
)  # fmt: skip


def at(when, zone="Z"):
    """A time as the kubelet writes it, from nanoseconds after the beginning."""
    second, rest = divmod(when, 10**9)
    return f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.{rest:09d}{zone} ".encode()


def fed(log, text, piece=None):
    piece = piece or len(text)
    return [line for i in range(0, len(text), piece) for line in log.feed(text[i : i + piece])]


def said(lines):
    return [(line.stream, line.data) for line in lines]


@given(
    steps=_STEPS, zone=st.sampled_from(sorted(_ZONES)), reads=st.lists(st.integers(0, 4000)),
    piece=st.integers(1, 300),
)  # fmt: skip
def test_any_cut_of_a_log_gives_each_line_once(steps, zone, reads, piece):
    """Times may go back by up to a second, as two streams of one container are written."""
    clock, raw = 0, []
    for step, back, words in steps:
        clock += step * 50_000_000  # many lines of one second, some of one time
        raw.append((max(0, clock - back), words))
    began = _BEGAN + _ZONES[zone]
    log, seen = PodLog(3), []
    for most in (*reads, None):
        log.again()
        floor = 0 if log.since is None else dt.datetime.fromisoformat(log.since).timestamp() - began
        text = b"".join(at(t, zone) + words + b"\n" for t, words in raw if t // 10**9 >= floor)
        seen += fed(log, text[:most], piece)
    assert seen == [
        LogLine(node_rank=3, data=words, time=(began * 10**9 + t) / 10**9) for t, words in raw
    ]


def test_lines_made_in_batches_are_as_others():
    (line,) = PodLog(1, 2).feed(b"2026-01-01T00:00:01.500000000Z hi\n")
    assert line == LogLine(node_rank=1, data=b"hi", attempt=2, time=1767225601.5)
    assert hash(line) == hash(evolve(line))
    assert repr(line) == repr(evolve(line))
    assert type(pickle.loads(pickle.dumps(line))) is type(line) is LogLine  # noqa: S301  # made here
    with pytest.raises(FrozenInstanceError):
        line.data = b"other"
    with pytest.raises(FrozenInstanceError):
        del line.data


@pytest.mark.parametrize("piece", [1, 7, None])
@pytest.mark.parametrize(
    "odd",
    [
        b"failed to watch the log file", b"2026-01-01T00:00:01.12345678xZ half", b"short",
        b"2026-13-01T00:00:01.123456789Z no such month", b"9999-12-31T23:59:59.999999999Z too late",
    ],
)  # fmt: skip
def test_words_without_a_time_stand_among_lines_that_have_one(odd, piece):
    text = at(0) + b"one\n" + odd + b"\n\n" + at(1) + b"two\n" + odd + b"\n"
    assert said(fed(PodLog(0), text, piece)) == [
        ("stdout", b"one"), ("event", odd), ("stdout", b"two"),
    ]  # fmt: skip


def test_times_of_other_forms_and_zones_are_read_among_each_other():
    text = b"".join([
        b"2026-01-01T00:00:01.250000000Z a\n", b"2026-01-01T00:00:01.5Z b\n",
        b"2026-01-01T00:00:01Z c\n", b"2026-01-01T02:00:02.750000000+02:00 d\n",
        b"2026-01-01T02:00:02.750000000Z e\n",
    ])  # fmt: skip
    assert [(line.data, line.time - _BEGAN) for line in PodLog(0).feed(text)] == [
        (b"a", 1.25), (b"b", 1.5), (b"c", 1.0), (b"d", 2.75), (b"e", 7202.75),
    ]  # fmt: skip


def test_a_line_of_a_mebibyte_comes_whole_in_many_reads():
    long = b"x\r" * (1 << 19)
    text = at(0) + b"one\n" + at(1) + long + b"\n" + at(2) + b"two\n"
    assert [line.data for line in fed(PodLog(0), text, 1 << 14)] == [b"one", long, b"two"]


def test_of_lines_with_one_time_those_before_a_break_are_not_given_again():
    lines = [at(5) + b"%d\n" % number for number in range(6)]
    log = PodLog(0)
    seen = fed(log, b"".join(lines[:4]) + lines[4][:-3])
    log.again()
    seen += fed(log, b"".join(lines), 11)
    assert [line.data for line in seen] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert log.last() == []


def test_a_clock_that_was_put_back_loses_no_line():
    log, seen = PodLog(0), []
    for second in (100, 101, 3, 4, 102, 103):
        seen += log.feed(at(second * 10**9) + b"%d\n" % second)
    log.fresh()
    seen += log.feed(at(10**9) + b"of the next life\n")
    assert [line.data for line in seen] == [
        b"100", b"101", b"3", b"4", b"102", b"103", b"of the next life",
    ]  # fmt: skip


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_whatever_is_no_line_of_a_container_raises_nothing(parts):
    log = PodLog(0)
    for part in parts:
        log.feed(part + b"\n")
    log.again()
    log.feed(b"".join(parts))
    log.last()
