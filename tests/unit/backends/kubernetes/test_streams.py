"""Answers put together from their bytes, however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufabric.backends.kubernetes._answer import Answer

_HEAD = b"HTTP/1.1 200 OK\r\nDate: today\r\n"
_ODD = [b"a line\n", b"with\r\n its end\r\n", b"5\r\nhello\r\n"]
_PIECES = st.lists(st.one_of(st.binary(min_size=1, max_size=300), st.sampled_from(_ODD)))
_CUTS = st.lists(st.integers(1, 400))


def chunked(pieces, extension=b""):
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(one), extension, one) for one in pieces)
    return _HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def fed(answer, data, cuts):
    got, at = b"", 0
    for step in [*cuts, len(data)]:
        got += answer.feed(data[at : at + step])
        at += step
    return got


@given(
    pieces=_PIECES, cuts=st.lists(st.integers(1, 400)), extension=st.sampled_from([b"", b";a=b"])
)
def test_chunks_give_the_body_wherever_they_are_cut(pieces, cuts, extension):
    answer = Answer()
    assert fed(answer, chunked(pieces, extension), cuts) == b"".join(pieces)
    assert answer.status == 200
    assert answer.over


@given(pieces=_PIECES.filter(bool), lack=st.integers(1, 8))
def test_an_answer_of_chunks_that_breaks_off_is_not_over(pieces, lack):
    answer = Answer()
    answer.feed(chunked(pieces)[: -4 - lack])
    assert not answer.over
    assert not answer.end()


@given(body=st.binary(max_size=500), cuts=_CUTS)
def test_a_counted_body_ends_with_its_count(body, cuts):
    answer = Answer()
    head = _HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    assert fed(answer, head + body, cuts) == body
    assert answer.over == bool(body) or answer.over


@given(body=st.binary(max_size=500), cuts=_CUTS)
def test_without_a_length_the_connection_is_the_end(body, cuts):
    answer = Answer()
    assert fed(answer, _HEAD + b"\r\n" + body, cuts) == body
    assert not answer.over
    assert answer.end()


def test_an_interim_answer_is_passed_over():
    answer = Answer()
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + _HEAD + b"Content-Length: 2\r\n\r\nhi"
    assert answer.feed(data) == b"hi"
    assert (answer.status, answer.over) == (200, True)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 nothing\r\n\r\n", b"x" * 70_000,
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhi\r\n",
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        Answer().feed(data)
