"""The simulated cloud keeps the contract of backends."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from gpufabric.backends.base import Backend
from gpufabric.errors import BackendError
from gpufabric.job import JobRef
from gpufabric.testing import BackendContract, FakeBackend, FakeCloud, pool
from gpufabric.testing._other import OtherProcess


class TestFake(BackendContract):
    injects_faults = True

    def make_factory(self, folder: Path) -> Callable[[], Backend]:
        pools = [pool(nodes=4, usd_hour=1.0), pool("H100:8", nodes=4, network="infiniband")]
        cloud = FakeCloud(pools, path=folder / "cloud")
        return partial(FakeBackend, cloud=cloud)

    def leftovers(self, backend: FakeBackend, ref: JobRef) -> Iterable[str]:
        return [str(made) for made in backend.cloud.objects if made.job == ref.name]

    def fail_call(
        self, backend: FakeBackend, number: int, *, lost_answer: bool, lasting: bool
    ) -> None:
        backend.cloud.fail(
            call=number,
            times=None if lasting else 1,
            moment="after" if lost_answer else "before",
        )

    def count_calls(self, backend: FakeBackend) -> int:
        return len(backend.cloud.calls)

    def heal(self, backend: FakeBackend) -> None:
        backend.cloud.heal()

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_launch_killed_at_any_call_is_found_and_removed(
        self, backend: FakeBackend, other: OtherProcess, moment: str
    ) -> None:
        plan = self.plan_of(backend, "echo hi")
        for number in range(1, 20):
            backend.cloud.fail(call=number, kind="kill", moment=moment)
            outcome = other.at_once("apply", plan, copies=1)[0]
            backend.cloud.heal()
            made = len(backend.cloud.objects)
            for ref in list(other.call("jobs")):
                other.call("teardown", ref)
            assert backend.cloud.objects == ()
            if not outcome.killed:
                assert made == 3
                assert number > 3
                return
        pytest.fail("a launch of two nodes makes too many calls")

    @pytest.mark.parametrize("kind", ["permission", "quota", "capacity"])
    def test_an_error_that_no_retry_mends_leaves_nothing_at_any_call(
        self, backend: FakeBackend, kind: str
    ) -> None:
        plan = self.plan_of(backend, "echo hi")
        for number in range(1, 20):
            before = self.count_calls(backend)
            backend.cloud.fail(call=number, kind=kind)
            try:
                ref = backend.apply(plan)
            except BackendError as exc:
                assert exc.leftovers == ()  # noqa: PT017  # not every call is struck
                assert backend.cloud.objects == ()
            else:
                backend.teardown(ref)
            if self.count_calls(backend) - before < number:
                return
            backend.cloud.heal()
        pytest.fail("a launch of two nodes makes too many calls")
