"""The contract of launching: once, whole or not at all, and nothing left; secrets kept."""

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpufabric.backends.base import Backend
from gpufabric.errors import BackendError, SpecError
from gpufabric.job import JobRef, JobState
from gpufabric.plan import LaunchPlan
from gpufabric.testing._contract_base import ENDLESS, ContractBase, by_rank, printed
from gpufabric.testing._other import OtherProcess, seeded_moments

__all__ = ["OnceContract", "SecrecyContract"]

_MOST_CALLS = 200


class OnceContract(ContractBase):
    """What `apply` keeps, whatever happens to it."""

    def test_applying_twice_makes_one_job(self, backend: Backend) -> None:
        plan = self.plan_of(backend, ENDLESS)
        ref = backend.apply(plan)
        self.until_up(backend, ref)
        made = sorted(self.leftovers(backend, ref))
        assert backend.apply(plan) == ref
        assert list(backend.jobs()) == [ref]
        assert sorted(self.leftovers(backend, ref)) == made

    def test_applying_the_plan_of_an_ended_job_starts_nothing(self, backend: Backend) -> None:
        plan = self.plan_of(backend, "echo hi")
        ref = backend.apply(plan)
        before, lines = self.finish(backend, ref)
        assert backend.apply(plan) == ref
        assert backend.status(ref) == before
        assert by_rank(backend.logs(ref)) == by_rank(lines)

    def test_another_run_is_another_job(self, backend: Backend) -> None:
        refs = {backend.apply(self.plan_of(backend, "true", run_id=run)) for run in ("a", "b")}
        assert len(refs) == 2
        assert set(backend.jobs()) == refs

    def test_two_processes_with_one_plan_make_one_job(
        self, backend: Backend, other: OtherProcess
    ) -> None:
        plan = self.plan_of(backend, "echo hi")
        answers = [outcome.get() for outcome in other.at_once("apply", plan, copies=3)]
        assert len(set(answers)) == 1
        assert list(backend.jobs()) == answers[:1]
        ref = answers[0]
        assert isinstance(ref, JobRef)
        status, lines = self.finish(backend, ref)
        assert status.state is JobState.SUCCEEDED
        assert [printed(lines, rank) for rank in (0, 1)] == [["hi"], ["hi"]]
        backend.teardown(ref)
        self.assert_nothing_left(backend, ref)

    @pytest.mark.parametrize("lasting", [False, True], ids=["once", "for-good"])
    @pytest.mark.parametrize("lost_answer", [False, True], ids=["refused", "answer-lost"])
    def test_a_fault_at_any_call_leaves_a_whole_job_or_nothing(
        self, backend: Backend, *, lost_answer: bool, lasting: bool
    ) -> None:
        if not self.injects_faults:
            pytest.skip("the backend injects no faults")
        plan = self.plan_of(backend, "echo hi")
        failed = 0
        for number in range(1, _MOST_CALLS):
            before = self.count_calls(backend)
            self.fail_call(backend, number, lost_answer=lost_answer, lasting=lasting)
            error = _error_of(backend, plan)
            struck = self.count_calls(backend) - before >= number
            self.heal(backend)
            failed += error is not None
            ref = self._judge(backend, plan, error)
            backend.teardown(ref)
            self.assert_nothing_left(backend, ref)
            if not struck:
                assert number > 1
                assert failed or not lasting
                return
        pytest.fail(f"a launch of two nodes makes more than {_MOST_CALLS} calls")

    def _judge(self, backend: Backend, plan: LaunchPlan, error: BackendError | None) -> JobRef:
        """Fails unless the job is whole, or nothing is left but what the error names."""
        if error is None:
            ref = backend.apply(plan)
            assert self.finish(backend, ref)[0].state is JobState.SUCCEEDED
            return ref
        ref = next(iter(backend.jobs()), None) or JobRef(
            backend=backend.name, place="none", name=plan.name
        )
        left = list(self.leftovers(backend, ref))
        assert error.leftovers or not left, f"{error} names nothing of {left}"
        assert error.backend == backend.name
        return ref

    def test_a_killed_launch_is_found_and_removed_by_another_process(
        self, backend: Backend, other: OtherProcess
    ) -> None:
        plan, ref, total = self._measured(backend, other)
        killed = 0
        for moment in seeded_moments(total, self.kill_moments, seed=self.seed):
            killed += other.killed("apply", plan, at=moment).killed
            other.call("teardown", ref)
            self.assert_nothing_left(backend, ref)
        assert killed >= self.kill_moments // 2

    def test_a_launch_that_was_killed_can_be_made_again(
        self, backend: Backend, other: OtherProcess
    ) -> None:
        plan, ref, total = self._measured(backend, other)
        for moment in seeded_moments(total, self.kill_moments, seed=self.seed + 1):
            other.killed("apply", plan, at=moment)
            assert backend.apply(plan) == ref
            assert list(backend.jobs()) == [ref]
            status, lines = self.finish(backend, ref)
            assert status.state is JobState.SUCCEEDED
            assert [printed(lines, rank) for rank in (0, 1)] == [["hi"], ["hi"]]
            backend.teardown(ref)
            self.assert_nothing_left(backend, ref)

    def test_a_killed_teardown_can_be_finished(self, backend: Backend, other: OtherProcess) -> None:
        plan, ref, _ = self._measured(backend, other)
        backend.apply(plan)
        total = other.moments("teardown", ref).moments
        for moment in seeded_moments(total, self.kill_moments // 2, seed=self.seed + 2):
            backend.apply(plan)
            other.killed("teardown", ref, at=moment)
            backend.teardown(ref)
            self.assert_nothing_left(backend, ref)

    def _measured(self, backend: Backend, other: OtherProcess) -> tuple[LaunchPlan, JobRef, int]:
        """A plan, the ref that it makes, and how many moments its launch has."""
        plan = self.plan_of(backend, "echo hi")
        ref = other.call("apply", plan)  # the next one need not import what a launch imports
        assert isinstance(ref, JobRef)
        other.call("teardown", ref)
        moments = other.moments("apply", plan).moments
        other.call("teardown", ref)
        self.assert_nothing_left(backend, ref)
        return plan, ref, moments


def _error_of(backend: Backend, plan: LaunchPlan) -> BackendError | None:
    try:
        backend.apply(plan)
    except BackendError as exc:
        return exc
    return None


class SecrecyContract(ContractBase):
    """What becomes of secrets."""

    SECRET = "s3cr3t-Zq81-never-shown"  # noqa: S105  # made up, to be looked for

    def test_a_secret_reaches_the_nodes_and_no_text(
        self, backend: Backend, factory: Callable[[], Backend]
    ) -> None:
        plan = self.plan_of(
            backend, 'echo "${#API_TOKEN}"; ' + ENDLESS, secrets={"API_TOKEN": self.SECRET}
        )
        for text in (str(plan), repr(plan), plan.to_yaml(), str(plan.to_dict()), repr(plan.task)):
            assert self.SECRET not in text
        assert self.SECRET not in "".join(repr(step) for step in plan.steps)
        ref = backend.apply(plan)
        self.until_up(backend, ref)
        assert self.SECRET not in str(ref)
        assert self.SECRET not in repr(backend.status(ref))
        assert self.SECRET.encode() not in b"".join(_command_lines())
        for seen in self.readable_by_others(factory(), ref):
            assert self.SECRET.encode() not in seen
        backend.cancel(ref)
        status, lines = self.finish(backend, ref)
        assert [printed(lines, rank)[0] for rank in (0, 1)] == [str(len(self.SECRET))] * 2
        assert self.SECRET.encode() not in b"".join(line.data for line in lines)
        assert self.SECRET not in repr(status)

    def test_an_error_does_not_show_a_secret(self, backend: Backend) -> None:
        if not self.injects_faults:
            pytest.skip("the backend injects no faults")
        plan = self.plan_of(backend, "true", secrets={"API_TOKEN": self.SECRET})
        self.fail_call(backend, 2, lost_answer=False, lasting=True)
        error = _error_of(backend, plan)
        assert error is not None
        assert self.SECRET not in f"{error!r} {error.__cause__!r} {error.__context__!r}"
        assert self.SECRET.encode() not in pickle.dumps(error)

    def test_a_secret_without_a_value_is_refused_before_anything_is_made(
        self, backend: Backend
    ) -> None:
        plan = self.plan_of(backend, "true", secrets={"API_TOKEN": None})
        with pytest.raises(SpecError, match="API_TOKEN"):
            backend.apply(plan)
        assert list(backend.jobs()) == []


def _command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:  # it has ended
            continue
