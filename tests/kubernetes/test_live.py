"""What a person does in a gang that runs: exec, ports, files, ssh, Jupyter."""

import filecmp
import hashlib
import json
import os
import re
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest
from gfcluster.shell import wait_until

import gpufabric as gf

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
    assert first.text.splitlines()[1].replace("gpufabric-", "gpufabric/").endswith("gpufabric/work")
    assert f"|2|{pair.ref.name}-" in second.text  # the name of rank 0


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
    wait_until("it has ended", lambda: pair.exec(left).text == "", timeout_s=30)


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


def test_a_folder_comes_back_as_it_went(pair, tmp_path):
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "large").write_bytes(os.urandom(8 << 20))
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "latest").symlink_to("deep")
    pair.cp(tree, "*:there")
    assert [done.text for done in pair.exec("./there/run.sh", node_rank=None)] == ["ran\n"] * 2
    pair.cp("1:there", tmp_path / "back")
    assert filecmp.cmp(tree / "deep" / "large", tmp_path / "back" / "deep" / "large", shallow=False)
    assert (tmp_path / "back" / "latest").readlink() == Path("deep")
    assert (tmp_path / "back" / "run.sh").stat().st_mode & 0o777 == 0o755


def test_a_copy_that_the_node_cannot_take_is_told(pair, tmp_path):
    (tmp_path / "large").write_bytes(bytes(32 << 20))
    with pytest.raises(gf.BackendError, match=r"node 0 of .*tar in /proc ended with [12]: .*tar"):
        pair.cp(tmp_path / "large", "0:/proc/large")
    with pytest.raises(gf.NotFoundError, match=r"node 1 of .* has no /nothing"):
        pair.cp("1:/nothing", tmp_path)


SSHD = ("/usr/sbin/sshd", "/usr/bin/ssh-keygen", "/usr/lib/openssh/sftp-server")


@pytest.fixture
def with_sshd(launch, cluster):
    """A pair of nodes with this machine's sshd, which the image has not."""
    if not cluster.own or not all(Path(path).exists() for path in SSHD):
        pytest.skip("this machine has no openssh-server to give to the nodes, or they are not ours")
    job = launch(num_nodes=2, envs={"GREETING": "a $b"}, secrets={"TOKEN": "hush"})
    told = subprocess.run(["ldd", *SSHD], capture_output=True, text=True, check=True).stdout
    for path in {*SSHD, *re.findall(r" => (/\S+)", told)}:
        if job.exec(["test", "-e", path]).exit_code:
            job.exec(["mkdir", "-p", str(Path(path).parent)], node_rank=None)
            job.cp(path, f"*:{path}")
    job.exec("echo sshd:x:101:65534::/run/sshd:/bin/false >> /etc/passwd", node_rank=None)
    return job


@pytest.mark.cluster
def test_ssh_scp_and_rsync_reach_the_nodes(with_sshd, tmp_path):
    key, config = tmp_path / "key", tmp_path / "config"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    config.write_text(with_sshd.ssh_config(public_key=f"{key}.pub"))
    host = f"{with_sshd.ref.name}-1"

    def run(*words, **fields):
        return subprocess.run(words, capture_output=True, check=False, timeout=60, **fields)

    asked = 'echo "$GREETING $TOKEN $GPUFABRIC_NODE_RANK $NODE_RANK"; pwd; cat; exit 5'
    done = run("ssh", "-F", config, host, asked, input=b"in")
    assert done.stdout == b"a $b hush 1 1\n/gpufabric/work\nin", done.stderr
    assert done.returncode == 5
    data = os.urandom(4 << 20)
    (tmp_path / "data").write_bytes(data)
    done = run("scp", "-F", config, tmp_path / "data", f"{host}:copied")
    assert done.returncode == 0, done.stderr
    done = run("scp", "-F", config, f"{host}:copied", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data, done.stderr
    assert run("ssh", "-F", config, "-tt", host, "tty").stdout.startswith(b"/dev/pts/")
    left = with_sshd.exec("cat /proc/[0-9]*/comm", node_rank=1).text.split()
    assert "sshd" not in left


@pytest.mark.cluster
def test_ssh_needs_a_server_in_the_image(pair):
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIATJTskQ5J+02SPrKVi8NbXl me@here"
    with pytest.raises(gf.BackendError, match=r"no sshd: ssh needs openssh-server"):
        pair.ssh_config(public_key=key)


@pytest.mark.cluster
def test_jupyter_runs_a_kernel_in_the_node(launch):
    packages = os.environ.get("GPUFABRIC_TEST_JUPYTER")
    if not packages:
        pytest.skip("GPUFABRIC_TEST_JUPYTER names no folder with jupyter_server and ipykernel")
    there = "/gpufabric/work/packages"  # `lib` in it may have what its compiled modules need
    job = launch(envs={"PYTHONPATH": there, "LD_LIBRARY_PATH": f"{there}/lib"})
    job.cp(packages, "0:packages")
    with job.jupyter(timeout_s=90) as server:
        token = server.url.partition("token=")[2]
        head = {"Authorization": f"token {token}", "Content-Type": "application/json"}

        def ask(path, body=None):
            at = f"http://127.0.0.1:{server.port}/api/{path}"
            with urllib.request.urlopen(urllib.request.Request(at, body, head)) as answer:
                return json.load(answer)

        kernel = ask("kernels", b"{}")["id"]
        assert answer_of(server.port, kernel, token, "import os; print(6 * 7)") == "42\n"
        words = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; grep -r . /root/.local 2>/dev/null"
        assert token.encode() not in job.exec(words).stdout
    assert b"ipykernel" not in job.exec("cat /proc/[0-9]*/cmdline").stdout


def answer_of(port, kernel, token, code):
    """What a kernel prints, by Jupyter's own websocket."""
    import websocket  # comes with the kubernetes client

    link = websocket.create_connection(
        f"ws://127.0.0.1:{port}/api/kernels/{kernel}/channels?token={token}", timeout=60
    )
    head = {"msg_id": "1", "msg_type": "execute_request", "session": "s", "username": "",
            "version": "5.3", "date": ""}  # fmt: skip
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {},
               "allow_stdin": False, "stop_on_error": True}  # fmt: skip
    body = {"header": head, "parent_header": {}, "metadata": {}, "content": content,
            "channel": "shell"}  # fmt: skip
    link.send(json.dumps(body))
    try:
        while True:
            told = json.loads(link.recv())
            if told["msg_type"] == "stream":
                return told["content"]["text"]
            assert told["msg_type"] != "error", told["content"]
    finally:
        link.close()


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
