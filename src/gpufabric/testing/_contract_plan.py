"""The contract of planning: pure, complete, values that travel."""

import pickle

import pytest

from gpufabric.backends.base import Backend, CheckReport, Site
from gpufabric.errors import SpecError
from gpufabric.plan import LaunchPlan, Resolution
from gpufabric.testing._contract_base import ContractBase, is_name

__all__ = ["PlanContract"]


class PlanContract(ContractBase):
    """What `check`, `discover`, `offers` and `plan` keep."""

    def test_it_has_the_shape_of_a_backend(self, backend: Backend) -> None:
        assert isinstance(backend, Backend)
        assert is_name(backend.name)
        assert isinstance(backend.capabilities, frozenset)

    def test_check_answers_without_raising(self, backend: Backend) -> None:
        report = backend.check()
        assert isinstance(report, CheckReport)
        assert report.backend == backend.name
        assert report.ok, str(report)
        assert report.items

    def test_check_tells_a_fault_without_raising(self, backend: Backend) -> None:
        if not self.injects_faults:
            pytest.skip("the backend injects no faults")
        self.fail_call(backend, 1, lost_answer=False, lasting=True)
        report = backend.check()
        assert not report.ok
        assert any(item.message for item in report.items if not item.ok)

    def test_a_site_is_a_value_that_travels(self, backend: Backend) -> None:
        site = backend.discover()
        assert site.backend == backend.name
        assert pickle.loads(pickle.dumps(site)) == site  # noqa: S301  # our own bytes
        assert Site.from_dict(site.to_dict()) == site
        assert Site.from_yaml(site.to_yaml()) == site

    def test_offers_are_a_function_of_task_and_site(self, backend: Backend) -> None:
        task, site = self.task("echo hi"), backend.discover()
        first = backend.offers(task, site)
        again = backend.offers(*pickle.loads(pickle.dumps((task, site))))  # noqa: S301  # our own bytes
        assert first == again
        assert first.offers
        assert Resolution.from_dict(first.to_dict()) == first
        for offer in first.offers:
            assert offer.backend == backend.name
            assert offer.num_nodes == task.num_nodes
            assert offer.tier >= offer.resources.network_tier

    def test_a_plan_is_a_function_of_its_inputs(self, backend: Backend) -> None:
        task, site = self.task("echo hi", envs={"GREETING": "hi"}), backend.discover()
        offer = backend.offers(task, site).offers[0]
        before = self.count_calls(backend) if self.injects_faults else 0
        first = backend.plan(task, offer, site)
        again = backend.plan(*pickle.loads(pickle.dumps((task, offer, site))))  # noqa: S301  # our own bytes
        assert first == again
        assert str(first) == str(again)
        assert self.injects_faults is False or self.count_calls(backend) == before

    def test_a_plan_travels_as_pickle_and_as_text(self, backend: Backend) -> None:
        plan = self.plan_of(backend, "echo 'a\nb' \"$HOME\"")
        assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301  # our own bytes
        assert LaunchPlan.from_dict(plan.to_dict()) == plan
        assert LaunchPlan.from_yaml(plan.to_yaml()) == plan
        assert LaunchPlan.from_yaml(plan.to_yaml()).key == plan.key

    def test_a_plan_prints_every_step(self, backend: Backend) -> None:
        plan = self.plan_of(backend, "echo hi")
        text = str(plan)
        assert plan.steps
        assert plan.name in text
        for step in plan.steps:
            assert step.kind in text
            assert step.name in text

    def test_planning_makes_nothing(self, backend: Backend) -> None:
        self.plan_of(backend, "echo hi")
        assert list(backend.jobs()) == []

    def test_another_run_of_a_task_is_another_job(self, backend: Backend) -> None:
        names = {self.plan_of(backend, "echo hi", run_id=run).name for run in ("", "1", "2")}
        assert len(names) == 3

    def test_what_it_has_not_is_rejected_with_a_reason(self, backend: Backend) -> None:
        task = self.task("echo hi", resources={"accelerators": "NOSUCH9000:8"})
        resolution = backend.offers(task, backend.discover())
        assert not resolution.offers
        assert resolution.rejections
        assert all(rejection.reason for rejection in resolution.rejections)
        assert all(rejection.backend == backend.name for rejection in resolution.rejections)

    def test_the_plan_of_another_backend_is_refused(self, backend: Backend) -> None:
        task, site = self.task("echo hi"), backend.discover()
        offer = backend.offers(task, site).offers[0]
        from attrs import evolve

        with pytest.raises(SpecError):
            backend.apply(evolve(backend.plan(task, offer, site), backend="another", steps=()))
        assert list(backend.jobs()) == []
