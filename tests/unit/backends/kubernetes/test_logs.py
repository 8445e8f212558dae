"""Log lines over broken connections, against a small API server of pods and their logs."""

import http.server
import json
import threading
import urllib.parse
from contextlib import contextmanager

import pytest

from gpufabric.backends.kubernetes import _logs
from gpufabric.backends.kubernetes._api import Api, ExpiredError, error_of
from gpufabric.backends.kubernetes._apply import again
from gpufabric.errors import (
    BackendError,
    ConflictError,
    CredentialsError,
    NotFoundError,
    QuotaError,
    Remedy,
    TransientError,
)

_KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: ml}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:%d"}}]
users: [{name: u, user: {token: secret-token}}]
"""


class Server(http.server.ThreadingHTTPServer):
    """One pod of rank 0, whose log breaks off after so many lines on each connection."""

    daemon_threads = True

    def __init__(self, lines, breaks):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lines = lines
        self.breaks = list(breaks)
        self.answers = []
        self.seen = []

    @property
    def over(self):
        return not self.breaks

    def pod(self):
        state = {"terminated": {"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z"}}
        if not self.over:
            state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        return {
            "metadata": {"name": "p-0", "uid": "u1", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n1"},
            "status": {
                "phase": "Succeeded" if self.over else "Running",
                "containerStatuses": [{"name": "job", "state": state}],
            },
        }


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        self.server.seen.append((url.path, query))
        if self.server.answers:
            self._send(*self.server.answers.pop(0))
        elif url.path.endswith("/log"):
            self._log(query)
        else:
            self._send(200, self.server.pod())

    def _send(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _log(self, query):
        since = query.get("sinceTime", "")[:19]
        lines = [line for line in self.server.lines if line[:19] >= since]
        most = self.server.breaks.pop(0) if self.server.breaks else len(lines)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines[:most]:
            data = line.encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if most == len(lines):
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True  # without the last chunk: a connection that broke

    def log_message(self, *args):
        pass


@pytest.fixture
def serving(tmp_path):
    @contextmanager
    def serve(lines=(), breaks=()):
        with Server(lines, breaks) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            config = tmp_path / "config"
            config.write_text(_KUBECONFIG % server.server_address[1])
            api = Api(backend="kubernetes", kubeconfig=str(config))
            try:
                yield api, server
            finally:
                api.close()
                server.shutdown()
                thread.join()

    return serve


def _stamped(count, per_moment=3):
    """Lines of which several carry one and the same time."""
    return [
        f"2026-01-01T00:00:{i // 20 % 60:02d}.{i // per_moment:09d}Z line {i}" for i in range(count)
    ]


@pytest.mark.parametrize("breaks", [(1,), (7, 3, 50, 2), tuple(range(1, 30)), (0, 0, 10)])
def test_broken_connections_lose_and_double_no_line(serving, breaks):
    with serving(_stamped(200), breaks) as (api, server):
        lines = list(_logs.follow(api, "ml", lambda: [server.pod()], lambda: server.over))
    assert [line.text for line in lines] == [f"line {i}" for i in range(200)]


def test_a_line_is_given_as_its_bytes_with_its_time(serving):
    with serving(["2026-01-01T00:00:01.5Z  two  blanks \x1b[0m"]) as (api, server):
        (line,) = _logs.read(api, "ml", [server.pod()])
    assert line.data == b" two  blanks \x1b[0m"
    assert line.time == pytest.approx(1767225601.5)


def test_a_follower_that_stops_leaves_no_thread(serving):
    with serving(_stamped(50), [10] * 40) as (api, server):
        before = threading.active_count()
        lines = _logs.follow(api, "ml", lambda: [server.pod()], lambda: False)
        next(lines)
        lines.close()
        names = [thread.name for thread in threading.enumerate()]
        assert not [name for name in names if name.startswith("gpufabric-log")]
        assert before


def test_a_request_is_tried_again_after_an_answer_that_may_pass(serving):
    with serving() as (api, server):
        server.answers = [(429, {"message": "slow down"}), (503, {}), (200, {"kind": "Pod"})]
        assert again(lambda: api.get("/api/v1/x")) == {"kind": "Pod"}
        assert len(server.seen) == 3


def test_a_refusal_is_not_tried_again(serving):
    with serving() as (api, server):
        server.answers = [(403, {"message": "pods is forbidden: User u cannot list"})] * 2
        with pytest.raises(CredentialsError, match="not allowed"):
            again(lambda: api.get("/api/v1/x"))
        assert len(server.seen) == 1


def test_a_list_is_read_page_by_page(serving):
    with serving() as (api, server):
        server.answers = [
            (200, {"items": [{"n": 1}], "metadata": {"continue": "next"}}),
            (200, {"items": [{"n": 2}], "metadata": {}}),
        ]
        assert [item["n"] for item in api.items("/api/v1/pods")] == [1, 2]
        assert [query.get("continue") for _, query in server.seen] == [None, "next"]


def test_no_answer_is_transient_and_shows_no_token(serving):
    with serving() as (api, server):
        port = server.server_address[1]
    assert port
    with pytest.raises(TransientError) as caught:
        api.get("/api/v1/x")
    api.close()
    assert "secret-token" not in f"{caught.value!r}"


@pytest.mark.parametrize(
    ("code", "message", "kind", "remedy"),
    [
        (401, "Unauthorized", CredentialsError, Remedy.FIX_SETUP),
        (403, "exceeded quota: gpus", QuotaError, Remedy.ELSEWHERE),
        (403, 'violates PodSecurity "restricted"', BackendError, Remedy.FIX_SETUP),
        (403, "User u cannot create pods", CredentialsError, Remedy.FIX_SETUP),
        (404, "not found", NotFoundError, Remedy.FIX_REQUEST),
        (409, "already exists", ConflictError, Remedy.FIX_REQUEST),
        (410, "too old", ExpiredError, Remedy.RETRY),
        (422, "invalid", BackendError, Remedy.FIX_REQUEST),
        (429, "slow down", TransientError, Remedy.RETRY),
        (503, "unavailable", TransientError, Remedy.RETRY),
    ],
)
def test_an_answer_becomes_the_error_that_it_means(*, code, message, kind, remedy):
    error = error_of(code, "", message, backend="kubernetes", operation="GET /x")
    assert type(error) is kind
    assert error.remedy is remedy
    assert message in str(error)
