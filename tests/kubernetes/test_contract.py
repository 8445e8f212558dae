"""The contract of every backend, kept by Kubernetes on the fake and on a real cluster."""

import contextlib
import functools
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from gpufabric.backends.kubernetes import Kubernetes
from gpufabric.backends.kubernetes._apply import leftovers
from gpufabric.config import Settings
from gpufabric.job import JobState
from gpufabric.testing import BackendContract
from gpufabric.testing._contract_base import ENDLESS, by_rank, close_lines, printed


def left(backend, ref):
    namespace = backend._where()[1]  # a ref of a launch that failed may name none
    return leftovers(backend._api, namespace, ref.name, jobsets=True)


def _counted(cluster):
    """Threads, and connections of ours to the server: the fake has its ends in this process too."""
    server = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    port = f":{urlsplit(server).port or 443:04X}"
    mine = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the fake closes its own meanwhile
            mine.add(str(entry.readlink()))
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [row for row in rows if row[2].endswith(port) and f"socket:[{row[9]}]" in mine]
    return threading.active_count(), len(ours)


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

    def test_close_ends_every_thread_and_connection(self, backend, factory, cluster):
        """As in the contract, but that the fake's own ends of connections are not counted."""
        ref = self.launch(backend, ENDLESS)
        self.until_up(backend, ref)
        before = _counted(cluster)
        assert before[1] > 0
        mine = factory()
        mine.discover()
        mine.status(ref)
        lines = mine.logs(ref, follow=True)
        next(lines)
        assert _counted(cluster)[1] > before[1]
        close_lines(lines)
        mine.close()
        assert _counted(cluster) == before
        assert backend.status(ref).state is JobState.RUNNING

    def test_lines_are_complete_in_order_and_streams_apart(self, backend):
        """The container runtime merges a container's streams: all lines are of stdout."""
        ref = self.launch(backend, "seq 1 2000; echo last >&2")
        _, followed = self.finish(backend, ref)
        wanted = [*map(str, range(1, 2001)), "last"]
        for lines in (followed, list(backend.logs(ref))):
            for rank in (0, 1):
                assert sorted(printed(lines, rank)) == sorted(wanted)
                assert [x for x in printed(lines, rank) if x != "last"] == wanted[:2000]

    def test_cancel_stops_the_processes_and_keeps_the_logs(self, backend):
        """The cluster removes pods that it stops, sooner or later: a follower keeps their lines."""
        ref = self.launch(backend, ENDLESS)
        self.until_up(backend, ref)
        lines = backend.logs(ref, follow=True)
        begun = [next(lines)]
        while not all(printed(begun, rank) for rank in (0, 1)):
            begun.append(next(lines))
        backend.cancel(ref)
        begun += lines
        assert [printed(begun, rank) for rank in (0, 1)] == [["up"], ["up"]]
        status, after = self.finish(backend, ref)
        assert status.state is JobState.CANCELLED
        assert all(node.state.ended for node in status.nodes)
        assert all(printed(after, rank) in ([], ["up"]) for rank in (0, 1))
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
