"""Websockets to a server that speaks frame by frame: old ones, broken ones, and last words."""

import base64
import contextlib
import hashlib
import json
import socket
import struct
import subprocess
import threading
import urllib.parse
from pathlib import Path

import pytest

from gpufabric.backends._streams import communicate
from gpufabric.backends.kubernetes import _stream
from gpufabric.backends.kubernetes._api import Api, UpgradeRefusedError
from gpufabric.backends.kubernetes._stream import Exec, PortStream, exec_in
from gpufabric.backends.kubernetes._websocket import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    BrokenFramesError,
    Frames,
    frame,
)
from gpufabric.errors import BackendError, CredentialsError, TransientError

_KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: ml}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:%d"}}]
users: [{name: u, user: {token: secret-token}}]
"""
DONE = b"\x03" + json.dumps({"status": "Success"}).encode()


def exited(code):
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return b"\x03" + json.dumps({"status": "Failure", "details": {"causes": causes}}).encode()


def served(payload, *, opcode=BINARY, final=True):
    """A frame of a server: not masked."""
    size = len(payload)
    head = bytes([(0x80 if final else 0) | opcode])
    if size < 126:
        return head + bytes([size]) + payload
    if size < 1 << 16:
        return head + b"\x7e" + struct.pack("!H", size) + payload
    return head + b"\x7f" + struct.pack("!Q", size) + payload


class Link:
    """The server's end of one websocket."""

    def __init__(self, sock, path, headers):
        self.sock, self.headers = sock, headers
        self.path = urllib.parse.urlsplit(path).path
        self.query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
        self.protocols = headers.get("sec-websocket-protocol", "").split(", ")

    def refuse(self, code, body=b"", kind="text/plain"):
        head = f"HTTP/1.1 {code} No\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        self.sock.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)

    def accept(self, protocol, *, ahead=b"", key=None):
        given = (key or self.headers["sec-websocket-key"]) + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        proof = base64.b64encode(hashlib.sha1(given.encode(), usedforsecurity=False).digest())
        head = (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Protocol: {protocol}\r\nSec-WebSocket-Accept: {proof.decode()}\r\n\r\n"
        )
        self.sock.sendall(head.encode() + ahead)

    def send(self, payload, **fields):
        self.sock.sendall(served(payload, **fields))

    def messages(self):
        """Opcode and payload of what the client sends; masks taken off."""
        file = self.sock.makefile("rb")
        while len(head := file.read(2)) == 2:
            assert head[1] & 0x80, "a client masks what it sends"
            size = head[1] & 0x7F
            if size >= 126:
                size = int.from_bytes(file.read(2 if size == 126 else 8), "big")
            key, data = file.read(4), file.read(size)
            yield head[0] & 0x0F, bytes(b ^ key[i % 4] for i, b in enumerate(data))


@pytest.fixture
def serve(tmp_path):
    """Lets a function answer each connection; gives an Api to it."""
    listener = socket.create_server(("127.0.0.1", 0))
    errors, apis, threads = [], [], []

    def start(answer):
        def one(sock):
            with sock, contextlib.suppress(ConnectionError):
                file = sock.makefile("rb")
                line = file.readline().decode().split(" ")
                rows = iter(lambda: file.readline().decode().strip(), "")
                headers = {k.lower(): v for k, _, v in (row.partition(": ") for row in rows)}
                try:
                    answer(Link(sock, line[1], headers))
                except AssertionError as exc:
                    errors.append(exc)
                sock.shutdown(socket.SHUT_RDWR)

        def run():
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    threads.append(threading.Thread(target=one, args=(sock,), daemon=True))
                    threads[-1].start()

        threading.Thread(target=run, daemon=True).start()
        path = tmp_path / "kubeconfig"
        path.write_text(_KUBECONFIG % listener.getsockname()[1])
        apis.append(Api(backend="k", kubeconfig=str(path)))
        return apis[-1]

    yield start
    for api in apis:
        api.close()
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join(5)
    assert not errors, errors


def run(api, *, stdin=None, **fields):
    return exec_in(api, "ml", "p", "c", ["program", "a b"], stdin=stdin, timeout_s=20, **fields)


# frames


def test_frames_in_any_pieces_are_the_same_messages():
    said = [(BINARY, b"a" * n) for n in (0, 1, 125, 126, 65535, 65536)] + [(CLOSE, b"\x03\xe8")]
    data = b"".join(served(payload, opcode=opcode) for opcode, payload in said)
    for size in (1, 2, 7, 1000, len(data)):
        frames = Frames()
        got = [m for at in range(0, len(data), size) for m in frames.feed(data[at : at + size])]
        assert got == said


def test_pieces_of_a_message_are_put_together_around_a_ping():
    data = (
        served(b"one ", final=False) + served(b"?", opcode=PING)
        + served(b"two ", opcode=0, final=False) + served(b"three", opcode=0)
    )  # fmt: skip
    assert list(Frames().feed(data)) == [(PING, b"?"), (BINARY, b"one two three")]


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400", b"\x82\x80xxxx", served(b"x", opcode=0), b"\x82\x7f" + b"\xff" * 8]
)
def test_what_is_no_frame_is_refused(data):
    with pytest.raises(BrokenFramesError):
        list(Frames().feed(data))


def test_masks_differ_and_come_off():
    one, two = frame(BINARY, b"same words"), frame(BINARY, b"same words")
    assert one != two
    key, data = one[2:6], one[6:]
    assert bytes(b ^ key[i % 4] for i, b in enumerate(data)) == b"same words"


# exec


def test_credentials_and_words_reach_the_server(serve):
    def answer(link):
        assert link.headers["authorization"] == "Bearer secret-token"
        assert link.path == "/api/v1/namespaces/ml/pods/p/exec"
        assert link.query["command"] == ["program", "a b"]
        assert (link.query["stdin"], link.query["container"]) == (["false"], ["c"])
        assert link.protocols == ["v5.channel.k8s.io", "v4.channel.k8s.io"]
        link.accept("v5.channel.k8s.io", ahead=served(b"\x01early "))  # with the handshake
        link.send(b"\x01out")
        link.send(b"\x02err")
        link.send(exited(3))

    done = run(serve(answer))
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"early out", b"err")


def test_a_status_in_pieces_and_no_goodbye_are_understood(serve):
    def answer(link):
        link.accept("v4.channel.k8s.io")
        link.send(DONE[:9])
        link.send(b"\x03" + DONE[9:])

    assert run(serve(answer)).exit_code == 0


def test_the_end_of_input_is_told_to_a_server_that_understands_it(serve):
    def answer(link):
        link.accept("v5.channel.k8s.io")
        got = b""
        for _, payload in link.messages():
            if payload == b"\xff\x00":
                break
            assert payload[:1] == b"\x00"
            got += payload[1:]
        link.send(b"\x01" + got[::-1])
        link.send(DONE)

    assert run(serve(answer), stdin=b"abc" * 50_000).stdout == b"cba" * 50_000


def test_an_old_server_gets_counted_pieces(serve):
    asked = []

    def answer(link):
        asked.append(link.protocols)
        if "v4.channel.k8s.io" not in link.protocols:
            link.refuse(403, b"requested protocol(s) are not supported")  # golang.org/x/net
            return
        assert link.query["command"][:2] == ["/bin/sh", "-c"]
        assert "dd" in link.query["command"][2]
        assert link.query["command"][-2:] == ["program", "a b"]
        link.accept("v4.channel.k8s.io")
        got = b""
        for _, payload in link.messages():
            size, _, data = payload[1:].partition(b"\n")
            assert int(size) == len(data)
            got += data
            if not data:
                break
        link.send(b"\x01" + got)
        link.send(DONE)

    assert run(serve(answer), stdin=b"abc" * 50_000).stdout == b"abc" * 50_000
    assert asked == [["v5.channel.k8s.io"], ["v4.channel.k8s.io"]]


def test_the_shell_takes_counted_pieces_apart():
    data = b"a\nb\0" * 30_000
    sent = b"".join(_stream._counted(data[at : at + 9999]) for at in range(0, len(data), 9999))
    words = ["/bin/sh", "-c", _stream._COUNTED, "gpufabric", "/bin/sh", "-c", "cat; exit 4"]
    done = subprocess.run(words, input=sent + b"0\n", capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (data, 4)


def test_last_words_are_heard_though_input_is_still_on_its_way(serve):
    def answer(link):
        link.accept("v5.channel.k8s.io")
        next(link.messages())
        link.send(b"\x02no space left")
        link.send(exited(2))  # and nothing of the rest is read

    done = run(serve(answer), stdin=bytes(64 << 20))
    assert (done.exit_code, done.stderr) == (2, b"no space left")


def test_a_command_that_did_not_run_is_told_in_the_clusters_words(serve):
    def answer(link):
        link.accept("v5.channel.k8s.io")
        words = {"status": "Failure", "reason": "InternalError", "message": "no such container"}
        link.send(b"\x03" + json.dumps(words).encode())

    with pytest.raises(BackendError, match="it did not run: no such container"):
        run(serve(answer))


@pytest.mark.parametrize("last", [b"", served(b"\x03\xe8", opcode=CLOSE), b"\xff\xff\xff\xff"])
def test_a_connection_that_ends_first_is_no_success(serve, last):
    def answer(link):
        link.accept("v5.channel.k8s.io")
        link.send(b"\x01half")
        link.sock.sendall(last)

    with pytest.raises(TransientError, match="ended before the command did"):
        run(serve(answer))


def test_a_ping_is_answered(serve):
    def answer(link):
        link.accept("v5.channel.k8s.io")
        link.send(b"are you there", opcode=PING)
        assert next(link.messages()) == (PONG, b"are you there")
        link.send(DONE)

    assert run(serve(answer)).exit_code == 0


def test_a_quiet_connection_is_kept_alive(serve, monkeypatch):
    monkeypatch.setattr("gpufabric.backends.kubernetes._websocket._QUIET_S", 0.05)

    def answer(link):
        link.accept("v5.channel.k8s.io")
        assert next(link.messages()) == (PING, b"")
        link.send(DONE)

    assert run(serve(answer)).exit_code == 0


@pytest.mark.parametrize("stdin", [None, b""])
def test_a_server_or_proxy_without_websockets_is_told(serve, stdin):
    with pytest.raises(UpgradeRefusedError, match=r"no websocket .* answered 200 <html>"):
        run(serve(lambda link: link.refuse(200, b"<html>log in</html>")), stdin=stdin)


def test_a_missing_right_is_told_at_once_and_asked_once(serve):
    asked = []

    def answer(link):
        asked.append(link.protocols)
        words = 'pods "p" is forbidden: User "u" cannot create resource "pods/exec"'
        body = json.dumps({"kind": "Status", "reason": "Forbidden", "message": words}).encode()
        link.refuse(403, body, "application/json")

    with pytest.raises(CredentialsError, match='cannot create resource "pods/exec"'):
        run(serve(answer), stdin=b"x")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("protocol", "key", "words"),
    [("v5.channel.k8s.io", "another", "that proves nothing"), ("chat", None, "speaks 'chat'")],
)
def test_an_answer_of_something_else_is_refused(serve, protocol, key, words):
    with pytest.raises(UpgradeRefusedError, match=words):
        run(serve(lambda link: link.accept(protocol, key=key)))


def test_output_that_nobody_reads_waits_at_the_server(serve):
    sent = []

    def answer(link):
        link.accept("v5.channel.k8s.io")
        link.sock.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while len(sent) < 1000:
                link.send(b"\x01" + bytes(1 << 16))
                sent.append(1)

    command = Exec(serve(answer), namespace="ml", pod="p", container="c", command=["x"])
    with pytest.raises(TimeoutError):
        command.wait(1.5)
    command.close()
    assert len(sent) < 500  # of 64 MiB: socket buffers and one MiB here


def test_no_thread_and_no_descriptor_is_left(serve):
    def answer(link):
        link.accept("v5.channel.k8s.io")
        for _ in link.messages():
            pass

    api = serve(answer)
    threads, files = threading.active_count(), len([*Path("/proc/self/fd").iterdir()])
    for _ in range(20):
        command = Exec(api, namespace="ml", pod="p", container="c", command=["x"], stdin=True)
        with pytest.raises(TimeoutError):
            communicate(command, b"x", timeout_s=0.02)
        command.close()
        command.close()
    assert threading.active_count() <= threads + 25  # the server's own
    assert len([*Path("/proc/self/fd").iterdir()]) <= files + 25


# ports


def port_answer(*messages, then=b""):
    def answer(link):
        assert link.path.endswith("/pods/p/portforward")
        assert (link.query["ports"], link.protocols) == (["80"], ["v4.channel.k8s.io"])
        number = struct.pack("<H", 80)
        link.accept("v4.channel.k8s.io", ahead=served(b"\x00" + number[:1]))
        link.send(b"\x00" + number[1:] + b"hello ")
        link.send(b"\x01" + number)
        for message in messages:
            link.send(message)
        link.sock.sendall(then)

    return answer


def read_all(connection):
    connection.socket.settimeout(10)
    return b"".join(iter(lambda: connection.socket.recv(4096), b""))


def test_a_ports_bytes_come_without_its_number(serve):
    goodbye = served(b"\x03\xe8", opcode=CLOSE)
    api = serve(port_answer(b"\x00wor", b"\x00ld", then=goodbye))
    link = PortStream(api, namespace="ml", pod="p", port=80)
    assert read_all(link) == b"hello world"
    assert link.error is None
    link.close()


@pytest.mark.parametrize(
    ("message", "words"),
    [(b"\x01connection refused", "connection refused"), (b"\x00x", "the connection broke")],
)
def test_what_keeps_from_a_port_is_told(serve, message, words):
    link = PortStream(serve(port_answer(message)), namespace="ml", pod="p", port=80)
    read_all(link)
    assert words in str(link.error)
    link.close()


def test_answers_come_after_this_side_has_said_all_until_they_pause(serve, monkeypatch):
    monkeypatch.setattr("gpufabric.backends.kubernetes._stream._LINGER_S", 0.3)

    def answer(link):
        link.accept("v4.channel.k8s.io")
        said = link.messages()
        assert next(said)[1] == b"\x00all"
        link.send(b"\x00\x50\x00answer")
        assert next(said)[0] == CLOSE

    link = PortStream(serve(answer), namespace="ml", pod="p", port=80)
    link.socket.sendall(b"all")
    link.socket.shutdown(socket.SHUT_WR)
    assert read_all(link) == b"answer"
    assert link.error is None
    link.close()


def test_a_connection_that_is_closed_here_ends_there(serve):
    seen = threading.Event()

    def answer(link):
        link.accept("v4.channel.k8s.io")
        assert [payload for _, payload in link.messages()][:1] == [b"\x00last"]
        seen.set()

    link = PortStream(serve(answer), namespace="ml", pod="p", port=80)
    link.socket.sendall(b"last")
    link.socket.close()
    assert seen.wait(10)
    link.close()
