"""Log lines over broken connections, against a small API server of pods and their logs."""

import functools
import logging
import threading

import pytest
from attrs import evolve
from logserver import served

from gpufabric.backends.kubernetes import _follow, _logs
from gpufabric.backends.kubernetes._api import ExpiredError, error_of
from gpufabric.backends.kubernetes._apply import again
from gpufabric.backends.kubernetes._follow import Follower
from gpufabric.errors import (
    BackendError,
    ConflictError,
    CredentialsError,
    NotFoundError,
    QuotaError,
    Remedy,
    TransientError,
)
from gpufabric.job import GANG, JobRef, LogLine

REF = JobRef(backend="kubernetes", place="c/ml", name="j")


@pytest.fixture
def serving(tmp_path):
    return functools.partial(served, tmp_path)


def follow(api, **fields):
    return Follower(api, "ml", REF, jobsets=False, **fields).lines()


def said(lines, rank=0):
    return [line.text for line in lines if line.stream == "stdout" and line.node_rank == rank]


def told(lines):
    return [(line.node_rank, line.text) for line in lines if line.stream == "event"]


def stamped(count, per_moment=3):
    """Lines of which several carry one and the same time."""
    return [
        f"2026-01-01T00:00:{i // 20 % 60:02d}.{i // per_moment:09d}Z line {i}" for i in range(count)
    ]


# ---- following


@pytest.mark.parametrize("breaks", [(1,), (7, 3, 50, 2), tuple(range(1, 12)), (0, 0, 10)])
@pytest.mark.parametrize("how", ["cut", "ended"])
def test_broken_connections_lose_and_double_no_line(serving, breaks, how):
    with serving(stamped(200), breaks, how=how) as (api, _):
        lines = list(follow(api))
    assert said(lines) == [f"line {i}" for i in range(200)]
    assert told(lines) == []


def test_a_line_is_given_as_its_bytes_with_its_time(serving):
    with serving(["2026-01-01T00:00:01.5Z  two  blanks \x1b[0m"]) as (api, server):
        (line,) = _logs.read(api, "ml", [server.pod()])
    assert line.data == b" two  blanks \x1b[0m"
    assert line.time == pytest.approx(1767225601.5)


def test_a_follower_that_stops_leaves_no_thread_and_no_connection(serving):
    with serving(stamped(50), [10] * 40) as (api, server):
        lines = follow(api)
        next(lines)
        lines.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("gpufabric-watch")]
        assert server.idle()


def test_a_follower_can_be_stopped_by_another_thread(serving):
    with serving(stamped(5), [5], ends=False) as (api, _):
        follower = Follower(api, "ml", REF, jobsets=False)
        seen, enough = [], threading.Event()

        def read():
            for line in follower.lines():
                seen.append(line)
                if len(seen) == 5:
                    enough.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert enough.wait(20)
        follower.loop.stop()
        reader.join(20)
        assert not reader.is_alive()


def test_what_is_older_than_asked_for_is_not_even_read(serving):
    began = 1767225600.0
    with serving(stamped(100), [10]) as (api, server):
        lines = list(follow(api, since=began + 3.5))
        (first, *_) = _logs.read(api, "ml", [server.pod()], since=began + 4)
        asked = [query["sinceTime"] for path, query in server.seen if path.endswith("/log")]
    assert said(lines) == [f"line {i}" for i in range(60, 100)]  # from its second on
    assert first.text == "line 80"
    assert asked[0] == "2026-01-01T00:00:03Z"
    assert min(asked) == asked[0]


def test_a_half_line_before_a_break_is_given_whole_and_once(serving):
    lines = ["2026-01-01T00:00:01.000000001Z a long line", "2026-01-01T00:00:01.000000002Z end"]
    for at in range(1, 90, 7):
        with serving(lines, [f"{at}b"], how="ended") as (api, _):
            assert said(follow(api)) == ["a long line", "end"]


def test_a_last_line_without_a_newline_is_given(serving):
    with serving(["2026-01-01T00:00:01.000000001Z no newline"], newline=False) as (api, _):
        assert said(follow(api)) == ["no newline"]


def test_lines_that_were_rotated_away_in_a_break_are_told_as_missing(serving):
    with serving(stamped(100, 1), [30]) as (api, server):
        lines = follow(api)
        seen = [next(lines) for _ in range(30)]
        server.rotate(60)
        seen += lines
    assert said(seen) == [f"line {i}" for i in (*range(30), *range(60, 100))]
    ((rank, words),) = told(seen)
    assert rank == 0
    assert "may be missing" in words
    assert seen[30].stream == "event"


def test_a_rotation_between_two_lines_that_were_seen_is_not_told(serving):
    with serving(stamped(100, 1), [30]) as (api, server):
        lines = follow(api)
        seen = [next(lines) for _ in range(30)]
        server.rotate(5)
        seen += lines
    assert said(seen) == [f"line {i}" for i in range(100)]
    assert told(seen) == []


def test_where_watching_is_not_permitted_it_is_listed_and_told_once(serving, caplog):
    caplog.set_level(logging.WARNING, "gpufabric")
    with serving(stamped(30), [10, 5], watch=403) as (api, _):
        assert said(follow(api)) == [f"line {i}" for i in range(30)]
        assert said(follow(api)) == [f"line {i}" for i in range(30)]
    words = [record.getMessage() for record in caplog.records]
    assert len([text for text in words if "may not watch pods" in text]) == 1


def test_a_server_that_does_not_know_the_version_any_more_is_asked_anew(serving):
    with serving(stamped(30), [10, 5], watch=410) as (api, _):
        assert said(follow(api)) == [f"line {i}" for i in range(30)]
    with serving(stamped(30), [10, 5], watch="ERROR") as (api, _):
        assert said(follow(api)) == [f"line {i}" for i in range(30)]


def test_credentials_that_are_not_accepted_any_more_end_the_follower(serving):
    with serving(stamped(30), [10]) as (api, server):
        lines = follow(api)
        for _ in range(10):
            next(lines)
        server.refuse(401)
        with pytest.raises(CredentialsError, match="does not accept the credentials"):
            list(lines)


def test_a_log_that_may_not_be_read_is_told_and_not_asked_for_ever(serving):
    with (
        serving(stamped(3), logs=403) as (api, _),
        pytest.raises(CredentialsError, match="allowed"),
    ):
        list(follow(api))


def test_a_job_that_is_removed_ends_its_follower(serving):
    with serving(stamped(5), [5], ends=False) as (api, server):
        lines = follow(api)
        seen = [next(lines) for _ in range(5)]
        server.remove()
        seen += lines
    assert said(seen) == [f"line {i}" for i in range(5)]


def test_a_log_that_could_not_be_read_before_its_pod_was_removed_is_told(serving):
    with serving(stamped(5), ends=False, logs=503, events=[event("BackOff")]) as (api, server):
        lines = follow(api)
        seen = [next(lines)]  # so that it is followed
        server.until_asked("/log")
        server.remove()
        seen += lines
    assert [text for _, text in told(seen)][:1] == ["BackOff: words of BackOff"]
    ((rank, words),) = told(seen[1:])
    assert rank == 0
    assert "removed before its log was read to the end" in words


def test_a_log_that_is_silent_after_the_job_has_ended_is_given_up_and_told(serving, monkeypatch):
    monkeypatch.setattr(_follow, "_LAST_S", 0.3)
    with serving(stamped(5), [5], ends=False) as (api, server):
        lines = follow(api)
        seen = [next(lines) for _ in range(5)]
        server.judge()
        seen += lines
    ((rank, words),) = told(seen)
    assert rank == 0
    assert "not read to its end" in words


def test_another_job_of_the_same_name_is_not_followed(serving):
    with serving(stamped(5), [5], ends=False) as (api, server):
        lines = follow(api)
        seen = [next(lines) for _ in range(5)]
        server.replace()
        seen += lines
    assert said(seen) == [f"line {i}" for i in range(5)]


def test_lines_of_both_lives_of_a_container_come_once(serving):
    """It is killed while its last lines were not read; the kubelet keeps the log of that life."""
    before, after = stamped(60)[:40], stamped(60)[40:]
    with serving(before, [25, 10, 3]) as (api, server):
        lines = follow(api)
        seen = [next(lines) for _ in range(25)]
        server.restart(after)
        seen += lines
    assert said(seen) == [f"line {i}" for i in range(60)]
    assert told(seen) == []


def test_words_of_the_kubelet_are_an_event_and_told_once(serving):
    lines = ["failed to create fsnotify watcher: too many open files", *stamped(3)]
    with serving(lines, [1, 1, 1]) as (api, _):
        seen = list(follow(api))
    assert said(seen) == ["line 0", "line 1", "line 2"]
    assert told(seen) == [(0, lines[0])]


# ---- events


def event(reason, about="j-0-abcde", *, kind="Pod", type="Warning", count=1, second=0, uid=None):  # noqa: A002
    at = f"2026-01-01T00:00:{second:02d}Z"
    uid = uid or f"{reason}{about}"
    return {
        "metadata": {"name": f"e{reason}", "uid": uid, "creationTimestamp": at},
        "involvedObject": {"kind": kind, "name": about}, "type": type, "reason": reason,
        "message": f"words of\n {reason}", "count": count, "lastTimestamp": at,
    }  # fmt: skip


def test_events_of_the_job_are_lines_and_those_of_others_are_not(serving):
    events = [
        event("BackOff", second=2, count=3), event("FailedScheduling", second=1),
        event("FailedCreate", "j", kind="Job"), event("Other", "k-0-abcde"),
        event("Other", "j-0-abcde-x"), event("Scheduled", type="Normal"),
        event("Pulled", type="Normal"), event("Evicted", "j-1-zzzzz", second=3),
        event("FailedCreate", "jj", kind="Job"), event("Old", second=0, uid="old"),
    ]  # fmt: skip
    events[-1]["lastTimestamp"] = "2025-12-31T00:00:00Z"
    with serving(stamped(2), events=events) as (api, _):
        seen = list(follow(api))
        only = list(follow(api, node_rank=1))
    assert told(seen) == [
        (GANG, "FailedCreate: words of FailedCreate"), (0, "Pulled: words of Pulled"),
        (0, "FailedScheduling: words of FailedScheduling"),
        (0, "BackOff: words of BackOff (3 times)"), (1, "Evicted: words of Evicted"),
    ]  # fmt: skip
    assert told(only) == [(1, "Evicted: words of Evicted")]
    assert "[gang] FailedCreate: words of FailedCreate" in map(str, seen)


def test_an_event_is_told_once_for_each_number_of_its_count(serving):
    with serving(stamped(5), [5], ends=False, events=[event("BackOff")]) as (api, server):
        lines = follow(api)
        seen = [next(lines) for _ in range(6)]
        for count in (2, 3):
            server.tell(event("BackOff", count=count))
            seen.append(next(lines))
            server.tell(event("BackOff", count=count))
        server.finish()
        seen += lines
    assert [text for _, text in told(seen)] == [
        "BackOff: words of BackOff", "BackOff: words of BackOff (2 times)",
        "BackOff: words of BackOff (3 times)",
    ]  # fmt: skip


def test_without_a_right_to_see_events_the_lines_come(serving):
    with serving(stamped(2), events=403) as (api, _):
        assert said(follow(api)) == ["line 0", "line 1"]


def test_events_stand_where_their_time_is_when_a_log_is_read():
    at = [LogLine(node_rank=0, data=b"x", stream="event", time=float(t)) for t in (1, 3)]
    pod_free = list(_logs.read(None, "ml", [], [at[1], at[0], evolve(at[0], node_rank=GANG)]))
    assert [(line.node_rank, line.time) for line in pod_free] == [(GANG, 1.0), (0, 1.0), (0, 3.0)]


# ---- requests


def test_a_request_is_tried_again_after_an_answer_that_may_pass(serving):
    with serving() as (api, server):
        server.answers = [(429, {"message": "slow down"}), (503, {}), (200, {"kind": "Pod"})]
        assert again(lambda: api.get("/api/v1/x")) == {"kind": "Pod"}
        assert len(server.seen) == 3


def test_a_refusal_is_not_tried_again(serving):
    with serving() as (api, server):
        server.answers = [(403, {"message": "pods is forbidden: User u cannot list"})] * 2
        with pytest.raises(CredentialsError, match="not allowed"):
            again(lambda: api.get("/api/v1/x"))
        assert len(server.seen) == 1


def test_a_list_is_read_page_by_page(serving):
    with serving() as (api, server):
        server.answers = [
            (200, {"items": [{"n": 1}], "metadata": {"continue": "next"}}),
            (200, {"items": [{"n": 2}], "metadata": {}}),
        ]
        assert [item["n"] for item in api.items("/api/v1/pods")] == [1, 2]
        assert [query.get("continue") for _, query in server.seen] == [None, "next"]


def test_no_answer_is_transient_and_shows_no_token(serving):
    with serving() as (api, server):
        port = server.server_address[1]
    assert port
    with pytest.raises(TransientError) as caught:
        api.get("/api/v1/x")
    api.close()
    assert "secret-token" not in f"{caught.value!r}"


@pytest.mark.parametrize(
    ("code", "message", "kind", "remedy"),
    [
        (401, "Unauthorized", CredentialsError, Remedy.FIX_SETUP),
        (403, "exceeded quota: gpus", QuotaError, Remedy.ELSEWHERE),
        (403, 'violates PodSecurity "restricted"', BackendError, Remedy.FIX_SETUP),
        (403, "User u cannot create pods", CredentialsError, Remedy.FIX_SETUP),
        (404, "not found", NotFoundError, Remedy.FIX_REQUEST),
        (409, "already exists", ConflictError, Remedy.FIX_REQUEST),
        (410, "too old", ExpiredError, Remedy.RETRY),
        (422, "invalid", BackendError, Remedy.FIX_REQUEST),
        (429, "slow down", TransientError, Remedy.RETRY),
        (503, "unavailable", TransientError, Remedy.RETRY),
    ],
)
def test_an_answer_becomes_the_error_that_it_means(*, code, message, kind, remedy):
    error = error_of(code, "", message, backend="kubernetes", operation="GET /x")
    assert type(error) is kind
    assert error.remedy is remedy
    assert message in str(error)
