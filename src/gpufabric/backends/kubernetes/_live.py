"""Commands and connections to the nodes of a job: which pod, which container, and why not."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import logging
from collections.abc import Sequence

from gpufabric._pause import undisturbed
from gpufabric.backends.base import check_rank
from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._apply import again
from gpufabric.backends.kubernetes._manifest import CONTAINER
from gpufabric.backends.kubernetes._objects import Found, path_of, pods_of, rank_of
from gpufabric.backends.kubernetes._script import ENV, WORK
from gpufabric.backends.kubernetes._status import attempt_of, node_state
from gpufabric.backends.kubernetes._stream import ALL_TAKEN, Exec, PortStream, exec_in
from gpufabric.errors import (
    BackendError,
    CredentialsError,
    GpuFabricError,
    NotFoundError,
    TransientError,
)
from gpufabric.job import JobRef, JobState, NodeStatus

__all__ = ["Node", "NodeCommand", "NodeConnection"]

_TRIES = 30
#: Tells its process id, then becomes the command, where and as the job's own command was started.
_ENTER = f"""\
echo $$
cd {WORK} 2>/dev/null
n=0
until [ -r {ENV} ] || [ "$n" -ge {_TRIES} ]; do n=$((n + 1)); sleep 0.1 2>/dev/null || sleep 1; done
if [ -r {ENV} ]; then . {ENV}
else echo "gpufabric: this node has not come to the job's command, so its variables are not set" >&2
fi
"""
_KILL = 'kill -9 -- "-$0" 2>/dev/null || kill -9 "$0"'
_KILL_S = 10.0
_log = logging.getLogger(__name__)


class Node:
    """A node of a running job, by its pod. Raises where nothing can be started in it."""

    def __init__(
        self, api: Api, namespace: str, *, ref: JobRef, found: Found, node_rank: int
    ) -> None:
        """Looks for the pod."""
        check_rank(node_rank, found.num_nodes)
        self.api, self.namespace, self.ref, self.rank = api, namespace, ref, node_rank
        pods = again(lambda: pods_of(api, namespace, ref.name))
        attempt = max(map(attempt_of, pods), default=0)
        mine = [pod for pod in pods if rank_of(pod) == node_rank and attempt_of(pod) == attempt]
        pod = mine[-1] if mine else None  # one that was lost may still be listed before
        self._refuse(pod, found)
        self.pod = str(pod["metadata"]["name"]) if pod else ""
        self.uid = str(pod["metadata"]["uid"]) if pod else ""

    def _refuse(self, pod: Json | None, found: Found) -> None:
        if pod is None:
            ended = found.condition("Complete", "Completed", "Failed") or found.cancelled
            if ended:
                self._gone("the job has ended, and the cluster has removed its pod")
            raise self.not_yet("it has no pod yet; status() says what it waits for")
        state = node_state(pod)
        if state.state.ended:
            self._gone(_how(state))
        if state.state is not JobState.RUNNING:
            raise self.not_yet(f"{state.state.value}{f': {state.reason}' if state.reason else ''}")

    def _gone(self, words: str) -> None:
        raise NotFoundError(
            f"node {self.rank} of {self.ref} runs no more: {words}",
            backend=self.api.backend, operation="exec",
        )  # fmt: skip

    def not_yet(self, words: str) -> TransientError:
        """That the node has not started."""
        return TransientError(
            f"node {self.rank} of {self.ref} has not started: {words}",
            backend=self.api.backend, operation="exec",
        )  # fmt: skip

    def why_lost(self, error: BackendError) -> BackendError:
        """What ended a connection: the node's own end, where it has ended, else `error`."""
        try:
            pod = self.api.get(path_of("v1", "Pod", self.namespace, self.pod))
        except NotFoundError:
            words = "its pod was removed"
        except GpuFabricError:
            return error
        else:
            state = node_state(pod)
            leaving = pod["metadata"].get("deletionTimestamp")
            same = str(pod["metadata"]["uid"]) == self.uid
            if same and not state.state.ended and not leaving:
                return error
            words = _how(state) if same and state.state.ended else "its pod is being removed"
        return NotFoundError(
            f"node {self.rank} of {self.ref} ended meanwhile: {words}",
            backend=self.api.backend, operation=error.operation,
        )  # fmt: skip


def _how(state: NodeStatus) -> str:
    return state.reason or state.state.value


class NodeCommand(Exec):
    """A command with the node's environment; `close` ends it on the node too."""

    def __init__(self, node: Node, command: Sequence[str], *, stdin: bool) -> None:
        """Starts it."""
        self._node = node
        self._head = bytearray()
        self._pid: int | None = None
        try:
            script = _ENTER + (ALL_TAKEN if stdin else 'exec "$@"')
            super().__init__(
                node.api, namespace=node.namespace, pod=node.pod, container=CONTAINER,
                command=["/bin/sh", "-c", script, "gpufabric", *command], stdin=stdin,
            )  # fmt: skip
        except CredentialsError:
            raise
        except BackendError as exc:
            raise node.why_lost(exc) from exc
        self.operation = f"exec {command[0]} on node {node.rank}"

    def _decode(self, channel: int, data: bytes) -> bytes:
        """Takes the process id off the head of the output."""
        if channel != 1 or self._pid is not None:
            return data
        self._head += data
        line, newline, rest = bytes(self._head).partition(b"\n")
        if not newline:
            return b""
        self._pid = int(line) if line.isdigit() else 0
        return rest if self._pid else bytes(self._head)  # a shell that says more than it was told

    def wait(self, timeout_s: float | None = None) -> int:
        """See `Exec.wait`; where the node ended first, `NotFoundError` says how."""
        try:
            return super().wait(timeout_s)
        except BackendError as exc:
            raise self._node.why_lost(exc) from exc

    def close(self) -> None:
        """Ends the command, also on the node."""
        running = not self.ended
        super().close()
        if running and self._pid:
            command = ["/bin/sh", "-c", _KILL, str(self._pid)]
            try:
                with undisturbed():
                    exec_in(
                        self._node.api, self._node.namespace, self._node.pod, CONTAINER, command,
                        timeout_s=_KILL_S,
                    )  # fmt: skip
            except (GpuFabricError, TimeoutError) as exc:
                _log.debug("process %d of node %d is left: %s", self._pid, self._node.rank, exc)


class NodeConnection(PortStream):
    """A connection to a port of a node."""

    def __init__(self, node: Node, port: int) -> None:
        """Opens it."""
        self._node = node
        try:
            super().__init__(node.api, namespace=node.namespace, pod=node.pod, port=port)
        except CredentialsError:
            raise
        except BackendError as exc:
            raise node.why_lost(exc) from exc
        self.operation = f"connect to port {port} of node {node.rank}"

    @property
    def error(self) -> BackendError | None:
        """What ended the connection; where the node ended first, how."""
        found = super().error
        return None if found is None else self._node.why_lost(found)
