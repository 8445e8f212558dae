"""The Kubernetes backend on a real cluster: the contract of every backend, and what is its own."""

import functools
import threading
from typing import ClassVar

import pytest
from faultproxy import FaultProxy

from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._apply import leftovers
from gpufabric.config import Settings
from gpufabric.job import JobState
from gpufabric.testing import BackendContract
from gpufabric.testing._contract_base import ENDLESS, by_rank, printed

pytestmark = pytest.mark.cluster


def left(backend, ref):
    namespace = backend._where()[1]  # a ref of a launch that failed may name none
    return leftovers(backend._api, namespace, ref.name, jobsets=True)


class TestKubernetesKeepsTheContract(BackendContract):
    kill_moments = 4

    @pytest.fixture
    def factory(self, cluster, namespace):
        settings = Settings(stop_grace_s=1.0, trust_env=False)
        return functools.partial(
            Kubernetes, namespace=namespace, kubeconfig=str(cluster.kubeconfig),
            settings=settings, image=cluster.image,
        )  # fmt: skip

    def leftovers(self, backend, ref):
        return left(backend, ref)

    # What Kubernetes keeps otherwise

    def test_lines_are_complete_in_order_and_streams_apart(self, backend):
        """The container runtime merges a container's streams: all lines are of stdout."""
        ref = self.launch(backend, "seq 1 2000; echo last >&2")
        _, followed = self.finish(backend, ref)
        wanted = [*map(str, range(1, 2001)), "last"]
        for lines in (followed, list(backend.logs(ref))):
            for rank in (0, 1):
                assert sorted(printed(lines, rank)) == sorted(wanted)
                assert printed(lines, rank)[:2000] == wanted[:2000]

    def test_cancel_stops_the_processes_and_keeps_the_logs(self, backend):
        """The cluster removes pods that it stops, so only a follower keeps their lines."""
        ref = self.launch(backend, ENDLESS)
        self.until_up(backend, ref)
        lines = backend.logs(ref, follow=True)
        begun = [next(lines)]
        backend.cancel(ref)
        begun += lines
        assert sorted((line.node_rank, line.text) for line in begun) == [(0, "up"), (1, "up")]
        status, after = self.finish(backend, ref)
        assert status.state is JobState.CANCELLED
        assert all(node.state.ended for node in status.nodes)
        assert after == []
        backend.cancel(ref)
        assert backend.status(ref).state is JobState.CANCELLED

    def test_a_secret_reaches_the_nodes_and_no_text(self, backend, factory):
        """As in the contract, of a job that ends by itself: what is cancelled keeps no lines."""
        token = {"API_TOKEN": self.SECRET}
        plan = self.plan_of(backend, 'echo "${#API_TOKEN}"', secrets=token)
        for text in (str(plan), repr(plan), plan.to_yaml(), repr(plan.task), repr(plan.steps)):
            assert self.SECRET not in text
        ref = backend.apply(plan)
        status, lines = self.finish(factory(), ref)
        assert [printed(lines, rank) for rank in (0, 1)] == [[str(len(self.SECRET))]] * 2
        assert self.SECRET not in f"{status!r} {ref}"
        namespace = backend._where()[1]
        for kind in ("pods", "events"):
            listed = list(backend._api.items(f"/api/v1/namespaces/{namespace}/{kind}"))
            assert self.SECRET not in repr(listed)

    def test_any_process_can_attach(self, backend, other):
        """As in the contract, of a job that succeeds: else the cluster removes pods it stops."""
        ref = self.launch(backend, "echo hi")
        status, lines = self.finish(backend, ref)
        assert list(other.call("jobs")) == [ref]
        assert other.call("status", ref) == status
        assert by_rank(other.call("logs", ref)) == by_rank(lines)


class TestKubernetesKeepsTheContractInFaults(TestKubernetesKeepsTheContract):
    """A launch with each of its calls failing takes minutes on a real cluster."""

    injects_faults = True
    pytestmark: ClassVar = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

    @pytest.fixture
    def proxy(self, cluster):
        with FaultProxy(cluster.kubeconfig) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            self.server = server
            yield server
            server.shutdown()
            thread.join()

    @pytest.fixture
    def factory(self, cluster, namespace, proxy, tmp_path):
        settings = Settings(stop_grace_s=1.0, trust_env=False)
        return functools.partial(
            Kubernetes, namespace=namespace, kubeconfig=str(proxy.kubeconfig(tmp_path)),
            settings=settings, image=cluster.image,
        )  # fmt: skip

    def fail_call(self, backend, number, *, lost_answer, lasting):  # noqa: ARG002  # the hook's
        self.server.fail(number, lost_answer=lost_answer, lasting=lasting)

    def count_calls(self, backend):  # noqa: ARG002  # the hook's
        return self.server.count

    def heal(self, backend):  # noqa: ARG002  # the hook's
        self.server.heal()
