"""The contract of entering nodes that run: what `Live` promises. Skipped for backends without."""

from collections.abc import Callable

import pytest

from gpufabric.backends._streams import communicate
from gpufabric.backends.base import Backend, Capability, Live
from gpufabric.errors import NotFoundError, SpecError
from gpufabric.job import JobRef
from gpufabric.testing._contract_base import ENDLESS, ContractBase, close_lines

__all__ = ["LiveContract"]

#: Gives back in capitals what it gets on a free port, which it says.
_SERVER = """\
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    link, _ = server.accept()
    while data := link.recv(65536):
        link.sendall(data.upper())
"""


class LiveContract(ContractBase):
    """What `exec` and `connect` keep, in a backend that has them."""

    @pytest.fixture
    def live(self, backend: Backend) -> Live:
        """The backend, where nodes can be entered."""
        if not isinstance(backend, Live):
            pytest.skip("the backend cannot enter nodes that run")
        return backend

    @pytest.fixture
    def ref(self, backend: Backend, live: Live) -> JobRef:  # noqa: ARG002  # skips
        """A job of two nodes that run."""
        made = self.launch(backend, ENDLESS, envs={"GREETING": "a $b 'c'"})
        self.until_up(backend, made)
        return made

    def said(self, live: Live, ref: JobRef, *command: str, rank: int = 0,
             data: bytes | None = None) -> tuple[int, bytes, bytes]:  # fmt: skip
        """Exit code, standard output and standard error of a command."""
        running = live.exec(ref, command, node_rank=rank, stdin=data is not None)
        try:
            return communicate(running, data or b"", timeout_s=60)
        finally:
            running.close()

    def test_capabilities_say_whether_nodes_can_be_entered(self, backend: Backend) -> None:
        for capability in (Capability.EXEC, Capability.PORT_FORWARD):
            assert (capability in backend.capabilities) == isinstance(backend, Live)

    def test_a_command_is_told_apart_by_stream_and_exit_code(self, live: Live, ref: JobRef) -> None:
        asked = ("sh", "-c", "echo out; echo err >&2; exit 3")
        assert self.said(live, ref, *asked) == (3, b"out\n", b"err\n")
        assert self.said(live, ref, "sh", "-c", "kill -9 $$")[0] == 137
        assert self.said(live, ref, "no-such-program")[0] == 127

    def test_a_command_has_the_environment_of_its_node(self, live: Live, ref: JobRef) -> None:
        asked = ("sh", "-c", 'echo "$GPUFABRIC_NODE_RANK $NODE_RANK $NNODES $GREETING"')
        for rank in (0, 1):
            wanted = f"{rank} {rank} 2 a $b 'c'\n".encode()
            assert self.said(live, ref, *asked, rank=rank)[1] == wanted

    def test_words_of_a_command_arrive_as_they_are(self, live: Live, ref: JobRef) -> None:
        words = ("", "a b", "$HOME", "'\"", "*", "--", "ü", "a\nb")
        code, out, _ = self.said(live, ref, "sh", "-c", 'printf "<%s>" "$@"', "-", *words)
        assert code == 0
        assert out == "".join(f"<{word}>" for word in words).encode()

    def test_input_arrives_whole_and_ends(self, live: Live, ref: JobRef) -> None:
        data = bytes(range(256)) * 4096
        assert self.said(live, ref, "cat", data=data) == (0, data, b"")
        assert self.said(live, ref, "cat", data=b"") == (0, b"", b"")
        assert self.said(live, ref, "cat") == (0, b"", b"")

    def test_input_that_nobody_reads_holds_nothing_up(self, live: Live, ref: JobRef) -> None:
        asked = ("sh", "-c", "exec <&-; echo done; exit 4")
        assert self.said(live, ref, *asked, data=bytes(4 << 20)) == (4, b"done\n", b"")

    def test_closing_ends_a_command_that_runs(self, live: Live, ref: JobRef) -> None:
        running = live.exec(ref, ["sh", "-c", "echo $$; exec sleep 300"])
        pid = running.stdout.readline().strip().decode()
        with pytest.raises(TimeoutError):
            running.wait(0)
        running.close()
        gone = f"while kill -0 {pid} && ! grep -q Z /proc/{pid}/stat; do :; done 2>/dev/null"
        assert self.said(live, ref, "sh", "-c", f"{gone}; echo gone")[1] == b"gone\n"

    def test_nodes_that_are_not_there_are_told(
        self, backend: Backend, live: Live, ref: JobRef
    ) -> None:
        with pytest.raises(SpecError, match="node_rank: 2 is not within 0 to 1"):
            live.exec(ref, ["true"], node_rank=2)
        with pytest.raises(SpecError, match="node_rank: -1 is not within 0 to 1"):
            live.connect(ref, 80, node_rank=-1)
        backend.teardown(ref)
        calls: tuple[Callable[[], object], ...] = (
            lambda: live.exec(ref, ["true"]),
            lambda: live.connect(ref, 80),
        )
        for call in calls:
            with pytest.raises(NotFoundError):
                call()

    def test_nodes_that_have_ended_are_told(self, backend: Backend, live: Live) -> None:
        ref = self.launch(backend, "true")
        self.finish(backend, ref)
        with pytest.raises(NotFoundError, match=r"node 1 .* runs no more"):
            live.exec(ref, ["true"], node_rank=1)

    def test_a_port_of_a_node_is_reached(self, backend: Backend, live: Live) -> None:
        ref = self.launch(backend, ["python3", "-c", _SERVER])
        lines = backend.logs(ref, node_rank=1, follow=True)
        port = int(next(lines).text)
        close_lines(lines)
        for _ in range(2):
            link = live.connect(ref, port, node_rank=1)
            try:
                link.socket.settimeout(30)
                link.socket.sendall(b"hello")
                assert link.socket.recv(5) == b"HELLO"
                assert link.error is None
            finally:
                link.close()
