"""The status of a local job, from its folder."""

from typing import cast

from gpufabric.backends._local_job import JobFolder
from gpufabric.job import JobRef, JobState, JobStatus, NodeStatus

__all__ = ["has_ended", "read_status"]


def has_ended(folder: JobFolder) -> bool:
    """Whether nothing more can come of the job."""
    supervised = folder.supervised()
    state = folder.state()
    return not supervised or (state is not None and JobState(str(state["state"])).ended)


def read_status(ref: JobRef, folder: JobFolder, *, supervised: bool) -> JobStatus:
    """The status that the folder tells. `supervised` is read before: what ends writes first."""
    state = folder.state()
    if state is None:
        return JobStatus(
            ref=ref,
            state=JobState.PENDING if supervised else JobState.LOST,
            reason="" if supervised else "its launch was killed before a node started",
        )
    word, reason = JobState(str(state["state"])), str(state["reason"])
    lost = not word.ended and not supervised
    if lost:
        word, reason = JobState.LOST, "its supervisor is gone: killed, or the machine restarted"
    nodes = tuple(
        _node(rank, cast("list[object]", row), lost=lost)
        for rank, row in enumerate(cast("list[object]", state["nodes"]))
    )
    first, attempt = cast("int | None", state["first"]), cast("int", state["attempt"])
    tail: tuple[str, ...] = ()
    if word.ended and first is not None:
        from gpufabric.backends._local_logs import last_lines

        tail = last_lines(folder.path, first, attempt)
    return JobStatus(
        ref=ref,
        state=word,
        nodes=nodes,
        attempt=attempt,
        exit_code=0 if word is JobState.SUCCEEDED else cast("int | None", state["exit_code"]),
        reason=reason,
        tail=tail,
        started_at=cast("float | None", state["started_at"]),
        ended_at=cast("float | None", state["ended_at"]),
    )


def _node(rank: int, row: list[object], *, lost: bool) -> NodeStatus:
    word, code, reason, started, ended = row
    state = JobState(str(word))
    return NodeStatus(
        node_rank=rank,
        state=JobState.LOST if lost and not state.ended else state,
        exit_code=cast("int | None", code),
        reason=str(reason),
        host="localhost",
        started_at=cast("float | None", started),
        ended_at=cast("float | None", ended),
    )
