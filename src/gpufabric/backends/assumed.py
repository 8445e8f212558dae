"""AssumedBackend: a cloud by the catalog alone. It plans, with no credentials and no network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import ClassVar, NoReturn

from gpufabric._frozen import FrozenDict
from gpufabric.backends.base import Capability, CheckItem, CheckReport, Site
from gpufabric.catalog.index import Catalog, CloudCatalog
from gpufabric.catalog.rows import Confidence
from gpufabric.errors import CatalogError, ConfigError
from gpufabric.job import JobRef, JobStatus, LogLine
from gpufabric.net.netplan import NetworkPlan, network_plan
from gpufabric.net.resolve import assumed_offers
from gpufabric.plan import LaunchPlan, Offer, Resolution, Step
from gpufabric.task import Task

__all__ = ["AssumedBackend"]


class AssumedBackend:
    """One cloud as the catalog knows it: for planning, docs and tests. It launches nothing."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.OFFLINE})

    def __init__(self, cloud: str, *, catalog: Catalog | None = None) -> None:
        self._catalog = catalog or Catalog.shipped()
        try:
            self._cloud: CloudCatalog = self._catalog.cloud(cloud)
        except CatalogError as exc:
            raise ConfigError(str(exc)) from exc

    @classmethod
    def every_cloud(cls, catalog: Catalog | None = None) -> tuple[AssumedBackend, ...]:
        """One for each cloud of the catalog."""
        catalog = catalog or Catalog.shipped()
        return tuple(cls(name, catalog=catalog) for name in catalog.clouds)

    def __repr__(self) -> str:
        return f"AssumedBackend({self.name!r})"

    @property
    def name(self) -> str:
        """The cloud's name."""
        return self._cloud.name

    def check(self) -> CheckReport:
        """Always usable: nothing but the catalog is needed."""
        item = CheckItem(name="catalog", ok=True, message="planning only, nothing is launched")
        return CheckReport(backend=self.name, items=(item,))

    def discover(self) -> Site:
        """A site that says it is assumed; what is sold stands in the catalog."""
        return self._site

    @cached_property
    def _site(self) -> Site:
        return Site(
            backend=self.name,
            unseen=("capacity, quota and present prices: this site is assumed",),
            facts=FrozenDict({"catalog": self._cloud.row.as_of.isoformat()}),
            assumed=True,
        )

    def offers(self, task: Task, site: Site) -> Resolution:  # noqa: ARG002  the catalog is the site
        """All types, platforms and regions that keep what is asked, best first."""
        return assumed_offers(task, self._cloud, self._catalog)

    def plan(self, task: Task, offer: Offer, site: Site, *, run: str = "") -> LaunchPlan:  # noqa: ARG002
        """What a launch there would make, with the reason and source of each network setting."""
        net = network_plan(offer, self._cloud, self._catalog, envs=task.envs)
        return LaunchPlan(
            backend=self.name,
            task=task,
            offer=offer,
            steps=tuple(self._steps(offer, net)),
            env=net.env,
            network=net.items,
            warnings=net.warnings,
            lower_tier=offer.tier < task.resources.network_tier,
            run=run,
        )

    def _steps(self, offer: Offer, net: NetworkPlan) -> Iterator[Step]:
        """The vendor's own requests in order; on Kubernetes what the pods of the job ask for."""
        if self._cloud.platforms[offer.platform].kind == "kubernetes":
            yield Step(verb="describe", kind="Pod", name="network", body=_pod(net))
            return
        for vm in self._cloud.vm_rows(offer.instance_type):
            if not vm.when and vm.confidence is not Confidence.INFERRED:
                for step in vm.steps:
                    yield Step(verb="describe", kind=step.api, name=step.what, body=step.params)

    # ---- nothing runs here

    def _only_plans(self) -> NoReturn:
        raise ConfigError(
            f"assumed site: planning only; to launch, make a fabric of {self.name}'s own backend"
        )

    def apply(self, plan: LaunchPlan) -> JobRef:  # noqa: ARG002
        """Refuses: an assumed site plans only."""
        self._only_plans()

    def status(self, ref: JobRef) -> JobStatus:  # noqa: ARG002
        """Refuses: an assumed site plans only."""
        self._only_plans()

    def logs(
        self,
        ref: JobRef,  # noqa: ARG002
        *,
        node_rank: int | None = None,  # noqa: ARG002
        follow: bool = False,  # noqa: ARG002
        since: float | None = None,  # noqa: ARG002
    ) -> Iterator[LogLine]:
        """Refuses: an assumed site plans only."""
        self._only_plans()

    def cancel(self, ref: JobRef) -> None:  # noqa: ARG002
        """Refuses: an assumed site plans only."""
        self._only_plans()

    def teardown(self, ref: JobRef) -> None:
        """Nothing was ever made here."""

    def jobs(self) -> Iterable[JobRef]:
        """No job runs on an assumed site."""
        return ()

    def close(self) -> None:
        """Nothing is open."""


def _pod(net: NetworkPlan) -> dict[str, object]:
    body: dict[str, object] = {"resources": {"limits": dict(net.requests)}}
    way = net.way
    if way is None:
        return body
    body["nodeSelector"] = dict(way.node_selector)
    body["tolerations"] = [one.key for one in way.tolerations]
    body["annotations"] = dict(way.annotations)
    body["hostNetwork"] = way.host_network
    body["privileged"] = way.privileged
    body["capabilities"] = list(way.capabilities)
    if way.claims:
        body["resourceClaimTemplates"] = dict(way.claims)
    return body
