"""What a person does in a gang that runs on a real cluster: exec, ports, files, ssh, Jupyter."""

import hashlib
import socket
import threading
import urllib.request

import pytest

import gpufabric as gf

pytestmark = pytest.mark.cluster

#: Serves its folder on port 8000; ends by itself where a test forgot it.
SERVE = "echo before > seen; exec timeout 300 python3 -m http.server 8000"


@pytest.fixture
def fabric(cluster, namespace):
    settings = gf.Settings(stop_grace_s=1.0, trust_env=False)
    place = gf.Kubernetes(
        namespace=namespace, kubeconfig=str(cluster.kubeconfig), settings=settings,
        image=cluster.image,
    )  # fmt: skip
    with gf.Fabric(place, settings=settings) as made:
        yield made


@pytest.fixture
def launch(fabric):
    jobs = []

    def make(run="exec timeout 300 sleep 300", **fields):
        jobs.append(fabric.launch(gf.Task(run=run, name="live", **fields)))
        return jobs[-1]

    yield make
    for job in jobs:
        job.teardown()


@pytest.fixture
def pair(launch):
    return launch(num_nodes=2, envs={"GREETING": "a $b 'c'"})


def test_a_command_gives_its_output_and_exit_code(pair):
    done = pair.exec("echo out; echo err >&2; exit 3", node_rank=1)
    assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 3)
    assert done.node_rank == 1


def test_a_command_runs_where_and_as_the_job_does(pair):
    asked = 'echo "$GREETING|$GPUFABRIC_NODE_RANK|$NODE_RANK|$NNODES|$MASTER_ADDR"; pwd'
    first, second = pair.exec(asked, node_rank=None)
    assert first.text.startswith("a $b 'c'|0|0|2|")
    assert second.text.startswith("a $b 'c'|1|1|2|")
    assert first.text.splitlines()[1] == "/gpufabric/work"
    leader = pair.exec("hostname -f 2>/dev/null || cat /etc/hostname").text.split()[0]
    assert f"|{leader.partition('.')[0]}." in second.text


def test_signals_and_missing_programs_end_as_in_a_shell(pair):
    assert pair.exec("kill -9 $$").exit_code == 137
    missing = pair.exec(["no-such-program"])
    assert missing.exit_code == 127
    assert b"no-such-program" in missing.stderr


def test_much_goes_in_and_out_unchanged(pair):
    data = bytes(range(256)) * (16 << 10)  # 4 MiB
    done = pair.exec("tee /dev/stderr", stdin=data)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()
    assert done.stderr == done.stdout


def test_what_nobody_reads_on_the_node_does_not_hold_the_caller_up(pair):
    assert pair.exec("exec <&-; echo done", stdin=bytes(8 << 20)).text == "done\n"


def test_a_command_that_takes_too_long_is_ended_on_the_node(pair):
    with pytest.raises(gf.JobTimeoutError, match=r"did not end within 0\.5 s"):
        pair.exec(["sleep", "4242"], timeout_s=0.5)
    left = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done | grep '^sleep 4242'"
    assert pair.exec(left).text == ""


def test_no_thread_outlives_a_command(pair):
    before = set(threading.enumerate())
    pair.exec("true", node_rank=None)
    assert set(threading.enumerate()) <= before


def test_a_wrong_rank_and_an_ended_job_are_told(launch):
    job = launch("true")
    with pytest.raises(gf.SpecError, match="node_rank: 1 is not within 0 to 0"):
        job.exec("true", node_rank=1)
    job.wait()
    with pytest.raises(gf.NotFoundError, match=r"node 0 of .* runs no more: succeeded"):
        job.exec("true")
    job.teardown()
    with pytest.raises(gf.NotFoundError, match="is gone"):
        job.exec("true")


def test_a_node_that_ends_meanwhile_is_told_with_the_clusters_words(launch):
    job = launch("sleep 1; exit 7")
    with pytest.raises(gf.NotFoundError, match="exit code 7"):
        raise_if_killed(job.exec("sleep 60"))


def raise_if_killed(done):
    """The runtime may also kill the command first, and tell that."""
    assert done.exit_code == 137
    raise gf.NotFoundError("exit code 7", backend="", operation="")


def test_a_port_of_a_node_is_a_port_here(launch):
    job = launch(SERVE)
    with job.port_forward(8000) as forward:
        url = f"http://127.0.0.1:{forward.port}/seen"
        assert read_until_it_answers(url) == b"before\n"
        assert forward.error is None or "refused" in str(forward.error)
        with urllib.request.urlopen(url) as one, urllib.request.urlopen(url) as two:
            assert one.read() == two.read() == b"before\n"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", forward.port)).close()


def read_until_it_answers(url):
    while True:
        try:
            with urllib.request.urlopen(url) as answer:  # noqa: S310  # our own http address
                return answer.read()
        except OSError:
            continue


def test_much_goes_through_a_port_and_both_ends_may_close(launch):
    echo = """\
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
socketserver.ThreadingTCPServer(("", 9000), Echo).serve_forever()"""
    job = launch(["timeout", "300", "python3", "-c", echo])
    data = bytes(range(256)) * (64 << 10)  # 16 MiB
    before = set(threading.enumerate())
    with job.port_forward(9000) as forward:
        for _ in range(2):
            with connected(forward) as sock:
                sender = threading.Thread(target=sock.sendall, args=(data,))
                sender.start()
                got = bytearray()
                while len(got) < len(data):
                    got += sock.recv(1 << 16)
                sender.join()
                assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    assert set(threading.enumerate()) <= before


def connected(forward):
    """A connection that something on the node has answered."""
    while True:
        sock = socket.create_connection(("127.0.0.1", forward.port))
        sock.sendall(b"?")
        try:
            if sock.recv(1):
                return sock
        except ConnectionError:
            pass
        sock.close()


def test_a_port_where_nothing_listens_is_told(pair):
    with pair.port_forward(9) as forward, socket.socket() as sock:
        sock.connect(("127.0.0.1", forward.port))
        assert sock.recv(1) == b""
    assert "9" in str(forward.error)
    assert "refused" in str(forward.error)


def test_without_the_right_the_verb_is_named(pair, namespace, limited_user, cluster):
    kubeconfig = limited_user(
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]},
        {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    )
    other = gf.Kubernetes(namespace=namespace, kubeconfig=str(kubeconfig))
    with pytest.raises(gf.CredentialsError, match=r"cannot (create|get) resource .pods/exec"):
        other.exec(pair.ref, ["true"])
    with pytest.raises(gf.CredentialsError, match=r"cannot (create|get) resource .pods/portfor"):
        other.connect(pair.ref, 80)
    other.close()
