"""The contract of running: states, logs, exit codes, environment, the end."""

import os
import threading
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import cast

import pytest
from attrs import evolve

from gpufabric.backends.base import Backend, Capability
from gpufabric.errors import JobFailedError, JobTimeoutError, NotFoundError, SpecError
from gpufabric.job import JobRef, JobState, LogLine
from gpufabric.testing._contract_base import ENDLESS, ContractBase, by_rank, close_lines, printed
from gpufabric.testing._other import OtherProcess

__all__ = ["RunContract"]

_ORDER = list(JobState)


class RunContract(ContractBase):
    """What `status`, `logs`, `cancel`, `teardown` and `close` keep."""

    # States and exit codes

    def test_a_job_that_exits_with_0_succeeds(self, backend: Backend) -> None:
        ref = self.launch(backend, "echo hi")
        status, _ = self.finish(backend, ref)
        assert status.ref == ref
        assert status.state is JobState.SUCCEEDED
        assert status.exit_code == 0
        assert [(node.node_rank, node.exit_code) for node in status.nodes] == [(0, 0), (1, 0)]
        assert status.raise_for_state() is status

    def test_a_ref_survives_its_text(self, backend: Backend) -> None:
        ref = self.launch(backend, "echo hi")
        assert JobRef.parse(str(ref)) == ref
        self.finish(backend, JobRef.parse(str(ref)))

    def test_states_only_move_down_their_list(self, backend: Backend) -> None:
        ref = self.launch(backend, "echo one; sleep 0.2; echo two")
        seen = [backend.status(ref)]
        seen.extend(backend.status(ref) for _ in backend.logs(ref, follow=True))
        seen.append(self.finish(backend, ref)[0])
        seen.append(backend.status(ref))
        gang = [_ORDER.index(status.state) for status in seen]
        assert gang == sorted(gang)
        for rank in (0, 1):
            states = [n.state for status in seen for n in status.nodes if n.node_rank == rank]
            places = [_ORDER.index(state) for state in states]
            assert places == sorted(places)

    def test_the_first_failing_node_ends_the_gang_with_its_code(self, backend: Backend) -> None:
        run = '[ "$GPUFABRIC_NODE_RANK" = 1 ] && echo broken && exit 3; sleep infinity'
        status, _ = self.finish(backend, self.launch(backend, run))
        assert status.state is JobState.FAILED
        assert status.exit_code == 3
        assert status.reason
        assert "broken" in status.tail
        assert {node.node_rank: node.state.ended for node in status.nodes} == {0: True, 1: True}
        with pytest.raises(JobFailedError) as caught:
            status.raise_for_state()
        assert caught.value.exit_codes[1] == 3
        assert "broken" in caught.value.tail

    def test_a_task_that_takes_too_long_times_out(self, backend: Backend) -> None:
        status, _ = self.finish(backend, self.launch(backend, "sleep infinity", timeout_s=0.3))
        assert status.state is JobState.TIMED_OUT
        with pytest.raises(JobTimeoutError):
            status.raise_for_state()

    def test_a_restart_keeps_ranks_and_counts_attempts(self, backend: Backend) -> None:
        if Capability.RESTARTS not in backend.capabilities:
            pytest.skip("the backend has no restarts")
        run = 'echo "$GPUFABRIC_NODE_RANK $GPUFABRIC_ATTEMPT"; [ "$GPUFABRIC_ATTEMPT" = 1 ]'
        status, lines = self.finish(backend, self.launch(backend, run, max_restarts=1))
        assert status.state is JobState.SUCCEEDED
        assert status.attempt == 1
        last = [line for line in lines if line.attempt == 1]
        assert [printed(last, rank) for rank in (0, 1)] == [["0 1"], ["1 1"]]
        assert any(line.attempt == 0 for line in lines)

    def test_restarts_that_are_used_up_end_in_failure(self, backend: Backend) -> None:
        if Capability.RESTARTS not in backend.capabilities:
            pytest.skip("the backend has no restarts")
        status, _ = self.finish(backend, self.launch(backend, "exit 7", max_restarts=1))
        assert (status.state, status.exit_code, status.attempt) == (JobState.FAILED, 7, 1)

    # What a node is given

    def test_a_node_sees_the_environment_of_its_gang(self, backend: Backend) -> None:
        names = (
            "GPUFABRIC_NODE_RANK", "GPUFABRIC_NUM_NODES", "GPUFABRIC_GPUS_PER_NODE",
            "GPUFABRIC_JOB", "GPUFABRIC_ATTEMPT", "NODE_RANK", "NNODES", "MASTER_PORT",
            "PET_NODE_RANK", "PET_NNODES", "PET_MASTER_PORT", "MASTER_ADDR", "PET_MASTER_ADDR",
        )  # fmt: skip
        run = "\n".join(
            [f'echo "{name}=${name}"' for name in names] + ["echo .", "printenv GPUFABRIC_NODE_IPS"]
        )
        ref = self.launch(backend, run)
        _, lines = self.finish(backend, ref)
        seen: list[dict[str, str]] = []
        for rank in (0, 1):
            text = printed(lines, rank)
            env = dict(line.split("=", 1) for line in text[: text.index(".")])
            seen.append(env)
            assert (
                env["GPUFABRIC_NODE_RANK"] == env["NODE_RANK"] == env["PET_NODE_RANK"] == str(rank)
            )
            assert env["GPUFABRIC_NUM_NODES"] == env["NNODES"] == env["PET_NNODES"] == "2"
            assert env["GPUFABRIC_JOB"] == str(ref)
            assert env["GPUFABRIC_ATTEMPT"] == "0"
            assert env["GPUFABRIC_GPUS_PER_NODE"].isdecimal()
            assert env["MASTER_PORT"] == env["PET_MASTER_PORT"]
            assert 1 <= int(env["MASTER_PORT"]) <= 65535
            assert env["MASTER_ADDR"] == env["PET_MASTER_ADDR"] != ""
            assert len(text[text.index(".") + 1 :]) == 2
        assert seen[0]["MASTER_ADDR"] == seen[1]["MASTER_ADDR"]
        assert seen[0]["MASTER_PORT"] == seen[1]["MASTER_PORT"]

    def test_the_users_variables_arrive_as_they_are_and_win(self, backend: Backend) -> None:
        envs = {"GREETING": 'it\'s "5 $HOME" \\ `x`', "MASTER_PORT": "12345", "EMPTY": ""}
        run = 'printenv GREETING; echo "$MASTER_PORT"; echo "<$EMPTY>"'
        _, lines = self.finish(backend, self.launch(backend, run, envs=envs))
        for rank in (0, 1):
            assert printed(lines, rank) == [envs["GREETING"], "12345", "<>"]

    def test_an_argument_list_is_taken_literally(self, backend: Backend) -> None:
        words = ["echo", "a  b", "$HOME", "it's", "*", "; exit 9"]
        status, lines = self.finish(backend, self.launch(backend, words))
        assert status.state is JobState.SUCCEEDED
        assert printed(lines, 0) == [" ".join(words[1:])]

    def test_setup_runs_first_on_every_node(self, backend: Backend) -> None:
        _, lines = self.finish(backend, self.launch(backend, "echo run", setup="echo setup"))
        assert [printed(lines, rank) for rank in (0, 1)] == [["setup", "run"]] * 2

    def test_a_setup_that_fails_fails_the_job(self, backend: Backend) -> None:
        ref = self.launch(backend, "echo run", setup="echo no >&2; exit 4")
        status, lines = self.finish(backend, ref)
        assert (status.state, status.exit_code) == (JobState.FAILED, 4)
        assert "run" not in [line.text for line in lines if line.stream == "stdout"]

    @pytest.mark.parametrize(
        "name", ["two words", "x\ny", "ünïcode 名前", "-", "A" * 300, "a/b'\""]
    )
    def test_any_name_of_a_task_will_do(self, backend: Backend, name: str) -> None:
        status, _ = self.finish(backend, self.launch(backend, "true", name=name))
        assert status.state is JobState.SUCCEEDED

    # Logs

    def test_lines_are_complete_in_order_and_streams_apart(self, backend: Backend) -> None:
        ref = self.launch(backend, "seq 1 2000; echo last >&2")
        _, followed = self.finish(backend, ref)
        read = list(backend.logs(ref))
        for lines in (followed, read):
            for rank in (0, 1):
                assert printed(lines, rank) == [str(i) for i in range(1, 2001)]
                assert printed(lines, rank, "stderr") == ["last"]

    def test_two_followers_see_all_of_it(self, backend: Backend) -> None:
        ref = self.launch(backend, "seq 1 200")
        first, second = backend.logs(ref, follow=True), backend.logs(ref, follow=True)
        seen: tuple[list[LogLine], list[LogLine]] = ([], [])
        for line in first:
            seen[0].append(line)
            seen[1].extend(x for x in [next(second, None)] if x is not None)
        seen[1].extend(second)
        for lines in seen:
            assert printed(lines, 1) == [str(i) for i in range(1, 201)]

    def test_a_reconnect_loses_and_doubles_nothing(self, backend: Backend) -> None:
        ref = self.launch(backend, "seq 1 100; sleep 0.1; seq 101 200")
        lines = backend.logs(ref, node_rank=1, follow=True)
        begun = list(islice((line for line in lines if line.stream != "event"), 30))
        close_lines(lines)
        rest = list(backend.logs(ref, node_rank=1, follow=True))
        assert printed(begun, 1) == [str(i) for i in range(1, 31)]
        assert printed(rest, 1) == [str(i) for i in range(1, 201)]

    def test_logs_of_one_node_are_those_of_all_for_it(self, backend: Backend) -> None:
        ref = self.launch(backend, 'echo "I am $NODE_RANK"')
        _, every = self.finish(backend, ref)
        for rank in (0, 1):
            alone = list(backend.logs(ref, node_rank=rank))
            assert printed(alone, rank) == [f"I am {rank}"]
            assert {line.node_rank for line in alone} == {rank}
            assert printed(every, rank) == printed(alone, rank)

    def test_a_node_that_is_not_there_is_refused(self, backend: Backend) -> None:
        ref = self.launch(backend, "true")
        with pytest.raises(SpecError):
            list(backend.logs(ref, node_rank=2))

    def test_since_leaves_out_what_is_older_and_nothing_else(self, backend: Backend) -> None:
        ref = self.launch(backend, "echo one; sleep 0.1; echo two; sleep 0.1; echo three")
        _, lines = self.finish(backend, ref)
        own = [line for line in lines if line.node_rank == 0 and line.stream == "stdout"]
        if any(line.time is None for line in own):
            pytest.skip("the place does not tell when a line was written")
        later = list(backend.logs(ref, node_rank=0, since=own[1].time))
        assert printed(later, 0) == ["two", "three"]

    def test_a_follower_of_a_job_that_is_cancelled_comes_to_its_end(self, backend: Backend) -> None:
        ref = self.launch(backend, ENDLESS)
        self.until_up(backend, ref)
        seen: list[LogLine] = []
        both = threading.Event()

        def follow() -> None:
            for line in backend.logs(ref, follow=True):
                seen.append(line)
                if all(printed(seen, rank) for rank in (0, 1)):
                    both.set()

        follower = threading.Thread(target=follow)
        follower.start()
        assert both.wait(60)  # else nodes may be gone before it has come to them
        backend.cancel(ref)
        follower.join(60)
        assert not follower.is_alive()
        assert [printed(seen, rank) for rank in (0, 1)] == [["up"], ["up"]]

    # The end

    def test_cancel_stops_the_processes_and_keeps_the_logs(self, backend: Backend) -> None:
        ref = self.launch(backend, ENDLESS)
        self.until_up(backend, ref)
        assert backend.status(ref).state is JobState.RUNNING
        backend.cancel(ref)
        status, lines = self.finish(backend, ref)
        assert status.state is JobState.CANCELLED
        assert all(node.state.ended for node in status.nodes)
        assert [printed(lines, rank) for rank in (0, 1)] == [["up"], ["up"]]
        backend.cancel(ref)
        assert backend.status(ref).state is JobState.CANCELLED

    def test_cancel_of_what_has_ended_changes_nothing(self, backend: Backend) -> None:
        ref = self.launch(backend, "exit 5")
        before, _ = self.finish(backend, ref)
        backend.cancel(ref)
        assert backend.status(ref) == before

    def test_teardown_of_a_running_job_leaves_nothing(self, backend: Backend) -> None:
        ref = self.launch(backend, ENDLESS)
        self.until_up(backend, ref)
        assert list(self.leftovers(backend, ref))  # or the hook sees nothing at all
        backend.teardown(ref)
        self.assert_nothing_left(backend, ref)

    def test_what_is_torn_down_is_gone(self, backend: Backend) -> None:
        ref = self.launch(backend, "echo hi")
        self.finish(backend, ref)
        backend.teardown(ref)
        assert backend.status(ref).state is JobState.GONE
        backend.teardown(ref)
        for call in (lambda: list(backend.logs(ref)), lambda: backend.cancel(ref)):
            with pytest.raises(NotFoundError):
                call()

    def test_teardown_of_what_never_was_succeeds(self, backend: Backend) -> None:
        ref = self.launch(backend, "true")
        never = evolve(ref, name="never-00000000")
        assert backend.status(never).state is JobState.GONE
        backend.teardown(never)
        assert list(backend.jobs()) == [ref]

    def test_any_process_can_attach(self, backend: Backend, other: OtherProcess) -> None:
        ref = self.launch(backend, "echo hi; exit 6")
        status, lines = self.finish(backend, ref)
        jobs = cast("Iterable[JobRef]", other.call("jobs"))
        assert list(jobs) == [ref]
        assert other.call("status", ref) == status
        assert by_rank(cast("list[LogLine]", other.call("logs", ref))) == by_rank(lines)

    def test_close_ends_every_thread_and_connection(
        self, backend: Backend, factory: Callable[[], Backend]
    ) -> None:
        ref = self.launch(backend, ENDLESS)
        self.until_up(backend, ref)
        before = (threading.active_count(), _open_files())
        mine = factory()
        mine.discover()
        mine.status(ref)
        lines = mine.logs(ref, follow=True)
        next(lines)
        close_lines(lines)
        mine.close()
        assert (threading.active_count(), _open_files()) == before
        assert backend.status(ref).state is JobState.RUNNING


def _open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.exists() else 0  # noqa: PTH208  # a count is all
