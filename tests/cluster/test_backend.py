"""The Kubernetes backend on a real cluster: the contract of every backend, and what is its own."""

import functools

import pytest

from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._apply import leftovers
from gpufabric.config import Settings
from gpufabric.job import JobState
from gpufabric.testing import BackendContract
from gpufabric.testing._contract_base import ENDLESS, printed

pytestmark = pytest.mark.cluster


def left(backend, ref):
    namespace = ref.place.rpartition("/")[2]
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

    def test_cancel_stops_every_process_and_keeps_state_and_lines(self, backend):
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
