"""A launch on a real cluster with each of its requests failing in turn: minutes, so not by default.

pytest -m slow tests/cluster/test_backend_faults.py
"""

import functools

import pytest
from faultproxy import FaultProxy

from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._apply import leftovers
from gpufabric.config import Settings
from gpufabric.testing._contract_once import OnceContract

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class TestKubernetesInFaults(OnceContract):
    """A launch with each of its calls failing takes minutes on a real cluster."""

    injects_faults = True
    kill_moments = 4

    @pytest.fixture
    def proxy(self, cluster):
        with FaultProxy.before(cluster.kubeconfig) as server:
            self.server = server
            yield server

    @pytest.fixture
    def factory(self, cluster, namespace, proxy, tmp_path):
        settings = Settings(stop_grace_s=1.0, retry_s=2.0, trust_env=False)
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

    def leftovers(self, backend, ref):
        namespace = backend._where()[1]  # a ref of a launch that failed may name none
        return leftovers(backend._api, namespace, ref.name, jobsets=True)
