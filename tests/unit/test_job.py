"""JobRef, JobState, JobStatus, LogLine: what is known of a job."""

import pytest

import gpufabric as gf

REF = gf.JobRef(backend="local", place="/jobs", name="a-1")


@pytest.mark.parametrize(
    ("text", "place", "name"),
    [
        ("aws://us-east-1/train-7c1e", "us-east-1", "train-7c1e"),
        ("local:///home/ada/jobs/a-1", "/home/ada/jobs", "a-1"),
        ("kubernetes://arn:aws:eks:eu-1:1:cluster/prod/ns/a-1", "arn:aws:eks:eu-1:1:cluster/prod/ns", "a-1"),  # noqa: E501  # a real context's name
        ("  local:///a b/ü/a-1\n", "/a b/ü", "a-1"),
    ],
)  # fmt: skip
def test_a_ref_is_read_from_its_text(text, place, name):
    ref = gf.JobRef.parse(text)
    assert (ref.place, ref.name) == (place, name)
    assert gf.JobRef.parse(str(ref)) == ref


@pytest.mark.parametrize("text", ["", "a-1", "local:/a/b", "local://a", "Local:///a/b", None, 5])
def test_what_is_no_ref_says_how_to_write_one(text):
    with pytest.raises(gf.SpecError, match="write backend://place/name"):
        gf.JobRef.parse(text)


def test_only_the_first_three_states_go_on():
    assert [state.value for state in gf.JobState if not state.ended] == [
        "pending", "starting", "running",
    ]  # fmt: skip


@pytest.mark.parametrize("state", [gf.JobState.RUNNING, gf.JobState.SUCCEEDED])
def test_a_state_that_is_no_failure_gives_itself(state):
    status = gf.JobStatus(ref=REF, state=state)
    assert status.raise_for_state() is status


@pytest.mark.parametrize("state", ["failed", "cancelled", "lost", "gone"])
def test_a_bad_end_raises_with_codes_and_last_lines(state):
    nodes = (
        gf.NodeStatus(node_rank=0, state=gf.JobState(state), exit_code=143),
        gf.NodeStatus(node_rank=1, state=gf.JobState(state), exit_code=3),
    )
    status = gf.JobStatus(
        ref=REF, state=gf.JobState(state), nodes=nodes, reason="node 1: exited with 3", tail=("oh",)
    )
    with pytest.raises(gf.JobFailedError, match=f"{state}: node 1: exited with 3") as caught:
        status.raise_for_state()
    assert caught.value.exit_codes == {0: 143, 1: 3}
    assert caught.value.tail == ("oh",)
    assert caught.value.ref == REF


def test_a_job_whose_time_ran_out_raises_a_timeout():
    with pytest.raises(TimeoutError, match="timed-out"):
        gf.JobStatus(ref=REF, state=gf.JobState.TIMED_OUT).raise_for_state()


def test_bytes_that_are_no_text_are_kept_and_shown():
    line = gf.LogLine(node_rank=3, data=b"caf\xc3\xa9 \xff")
    assert str(line) == "[3] café \\xff"
    assert line.data.endswith(b"\xff")
