"""What a person does in a node that runs, on processes of this machine."""

import asyncio
import contextlib
import io
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import gpufabric as gf
from gpufabric import _ssh as gf_ssh
from gpufabric._copy import split_path, tar_pieces, unpack
from gpufabric.backends.base import Live

LASTING = "exec sleep 300"


@pytest.fixture
def place(tmp_path):
    return gf.Local(tmp_path / "jobs", gf.Settings(trust_env=False, stop_grace_s=1.0))


@pytest.fixture
def fabric(place):
    with gf.Fabric(place) as made:
        yield made


@pytest.fixture
def launch(fabric):
    jobs = []

    def make(run=LASTING, **fields):
        job = fabric.launch(gf.Task(run=run, name="live", **fields))
        jobs.append(job)
        return job

    yield make
    for job in jobs:
        job.teardown()


@pytest.fixture
def pair(launch):
    return launch(num_nodes=2, envs={"GREETING": "a $b"}, secrets={"TOKEN": "hush"})


# exec


def test_a_command_has_the_environment_and_folder_of_its_node(pair):
    asked = 'echo "$GREETING $TOKEN $GPUFABRIC_NODE_RANK $NODE_RANK"; pwd'
    first, second = pair.exec(asked, node_rank=None)
    assert first.text.startswith("a $b hush 0 0\n")
    assert second.text.startswith("a $b hush 1 1\n")
    assert first.text != second.text.replace("1 1", "0 0")  # each has a folder of its own
    assert (first.node_rank, second.node_rank) == (0, 1)


def test_output_error_and_exit_code_are_apart(pair):
    done = pair.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.stdout, done.stderr, done.exit_code) == (b"out\n", b"err\n", 3)
    assert pair.exec("kill -9 $$").exit_code == 137
    assert pair.exec(["no-such-program"]).exit_code == 127


@pytest.mark.parametrize("given", [b"ab" * 300_000, "ab" * 300_000, io.BytesIO(b"ab" * 300_000)])
def test_input_of_any_kind_comes_back_whole(pair, given):
    assert pair.exec(["cat"], stdin=given).stdout == b"ab" * 300_000


def test_a_command_that_does_not_read_its_input_ends(pair):
    assert pair.exec("exec <&-; echo done", stdin=bytes(1 << 20)).text == "done\n"
    assert pair.exec(["cat"]).text == ""


def test_a_command_that_takes_too_long_is_ended_with_its_children(pair):
    with pytest.raises(gf.JobTimeoutError, match=r"node 1 .* did not end within 0\.3 s"):
        pair.exec("sleep 4243 & sleep 4243; true", node_rank=1, timeout_s=0.3)
    until_ended(b"sleep\x004243")


def until_ended(words):
    """Returns once no process has these words; the test's own time limit ends it otherwise."""
    while any(words in line for line in command_lines()):
        time.sleep(0.01)


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            continue


def test_one_node_that_fails_ends_the_command_on_all(pair):
    with pytest.raises(gf.JobTimeoutError):
        pair.exec('[ "$NODE_RANK" = 0 ] && sleep 4244', node_rank=None, timeout_s=0.3)
    until_ended(b"sleep\x004244")


@pytest.mark.parametrize("command", ["x\0y", [], [1], ["a", "b\0"]])
def test_what_is_no_command_is_refused(pair, command):
    with pytest.raises(gf.SpecError, match="command"):
        pair.exec(command)


def test_a_wrong_rank_an_ended_and_a_removed_job_are_told(launch):
    job = launch("exit 4")
    with pytest.raises(gf.SpecError, match="node_rank: 1 is not within 0 to 0"):
        job.exec("true", node_rank=1)
    job.wait()
    with pytest.raises(gf.NotFoundError, match=r"node 0 .* runs no more: failed: exited with 4"):
        job.exec("true")
    job.teardown()
    with pytest.raises(gf.NotFoundError, match="is gone"):
        job.exec("true")


@pytest.mark.parametrize("end", ["cancel", "teardown"])
def test_commands_end_with_their_job(launch, place, end):
    job = launch()
    running = place.exec(job.ref, ["sleep", "4245"])
    getattr(job, end)()
    assert running.wait() == 137
    running.close()


def test_a_backend_without_it_is_refused_by_name(fabric):
    class Plain:
        name = "plain"

    handle = gf.JobHandle(
        gf.JobRef(backend="plain", place="x", name="y"), Plain(), settings=fabric.settings
    )
    for call in (
        lambda: handle.exec("true"), lambda: handle.port_forward(1), lambda: handle.cp("a", "0:b"),
    ):  # fmt: skip
        with pytest.raises(gf.BackendError, match=r"plain .*cannot enter nodes.*Kubernetes, Local"):
            call()


def test_backends_that_say_they_can_are_live(place):
    assert isinstance(place, Live)
    assert isinstance(gf.Kubernetes("anywhere"), Live)


# ports

ECHO = """\
import socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        got = b""
        while data := self.request.recv(65536):
            if not data.startswith(b"all:") and not got:
                self.request.sendall(data)
            else:
                got += data
        self.request.sendall(got)
server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo)
open("port", "w").write(str(server.server_address[1]))
server.serve_forever()"""


@pytest.fixture
def echo(launch):
    """A job with a server, and the port that it listens on."""
    job = launch(["python3", "-c", ECHO])
    return job, int(job.exec("until [ -s port ]; do sleep 0.01; done; cat port").text)


def test_a_port_carries_many_connections_and_their_ends(echo):
    job, port = echo
    before = set(threading.enumerate())
    with contextlib.ExitStack() as all_of, job.port_forward(port) as forward:
        at = ("127.0.0.1", forward.port)
        socks = [all_of.enter_context(socket.create_connection(at)) for _ in range(8)]
        for number, sock in enumerate(socks):
            sock.sendall(b"%d" % number)
        assert [sock.recv(9) for sock in socks] == [b"%d" % n for n in range(8)]
        data = b"all:" + bytes(3 << 20)
        with socket.create_connection(("127.0.0.1", forward.port)) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            got = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        assert got == data
        forward.close()
        assert [sock.recv(9) for sock in socks] == [b""] * 8
    assert forward.error is None
    assert set(threading.enumerate()) <= before


@contextlib.contextmanager
def no_descriptor_left():
    """This process can open nothing within the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
    with contextlib.ExitStack() as held:
        try:
            with contextlib.suppress(OSError):
                while True:
                    held.callback(os.close, os.dup(0))
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_forward_waits_for_room_and_goes_on(echo, monkeypatch):
    job, port = echo
    told = threading.Event()
    monkeypatch.setattr(logging.getLogger("gpufabric._forward"), "warning", lambda *_: told.set())
    with job.port_forward(port) as forward, socket.socket() as sock:
        with no_descriptor_left():
            sock.connect(("127.0.0.1", forward.port))
            assert told.wait(30)
        sock.sendall(b"hello")
        assert sock.recv(5) == b"hello"


def test_a_port_where_nothing_listens_is_told(pair):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    with pair.port_forward(free) as forward, socket.socket() as sock:
        sock.connect(("127.0.0.1", forward.port))
        assert sock.recv(1) == b""
    assert "refused" in str(forward.error)


def test_a_local_port_that_is_taken_is_told(pair):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(gf.ConfigError, match=rf"port {port} .*leave local_port out"):
            pair.port_forward(80, local_port=port)


def test_a_port_of_what_does_not_run_is_refused_at_once(launch):
    job = launch("true")
    with pytest.raises(gf.SpecError, match="port: 70000 is no port"):
        job.port_forward(70000)
    with pytest.raises(gf.SpecError, match="node_rank: 1 is not within 0 to 0"):
        job.port_forward(80, node_rank=1)
    job.wait()
    with pytest.raises(gf.NotFoundError, match="runs no more: succeeded"):
        job.port_forward(80)
    job.teardown()
    with pytest.raises(gf.NotFoundError, match="is gone"):
        job.port_forward(80)


# cp


@pytest.fixture
def tree(tmp_path):
    top = tmp_path / "tree"
    (top / "deep" / ("long" * 40)).mkdir(parents=True)
    (top / "deep" / ("long" * 40) / "ü.txt").write_bytes(b"x" * 100_001)
    (top / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (top / "run.sh").chmod(0o755)
    (top / "latest").symlink_to("deep")
    (top / "empty").mkdir()
    return top


def listing(top):
    found = {}
    for path in sorted(top.rglob("*")):
        what = path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        found[str(path.relative_to(top))] = (what, path.lstat().st_mode)
    return found


def test_a_folder_comes_back_as_it_went(pair, tree, tmp_path):
    pair.cp(tree, "1:there")
    assert pair.exec("./there/run.sh", node_rank=1).text == "ran\n"
    pair.cp("1:there", tmp_path / "back")
    assert listing(tmp_path / "back") == listing(tree)
    pair.cp("1:there", tmp_path / "back")  # into a folder that is there
    assert listing(tmp_path / "back" / "there") == listing(tree)


def test_files_take_the_name_of_the_target_or_go_into_it(pair, tree, tmp_path):
    pair.cp(tree / "run.sh", "0:other.sh")
    pair.cp(tree / "run.sh", "0:.")
    pair.cp(f"{tree}/.", "0:.")
    said = pair.exec("ls -d other.sh run.sh deep latest").text
    assert said == "deep\nlatest\nother.sh\nrun.sh\n"
    pair.cp("0:other.sh", tmp_path)
    assert (tmp_path / "other.sh").read_text() == (tree / "run.sh").read_text()


def test_a_star_is_every_node(pair, tree):
    pair.cp(tree / "run.sh", "*:all.sh")
    assert [done.text for done in pair.exec("./all.sh", node_rank=None)] == ["ran\n"] * 2


def test_a_symlink_that_is_named_is_followed(pair, tree, tmp_path):
    pair.cp(tree, "0:there")
    pair.exec("ln -s run.sh there/named")
    pair.cp("0:there/named", tmp_path / "one")
    pair.cp("0:there/latest", tmp_path / "two")
    pair.cp(tree / "latest", "0:three")
    assert (tmp_path / "one").read_text() == (tree / "run.sh").read_text()
    assert listing(tmp_path / "two") == listing(tree / "deep")
    assert pair.exec("[ -L three ] || ls three").text.startswith("long")


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("a", "b", "both are of this machine"),
        ("0:a", "1:b", "both are on nodes"),
        ("*:a", "b", "copy from one node"),
        ("nothing-here", "0:b", "nothing-here is not on this machine"),
        ("0:nothing", "b", "has no nothing"),
        ("/proc/self/cmdline", "0:no/such/place", "there is no folder no/such"),
        ("/proc/self/cmdline", "0:no/", "there is no folder no/"),
        ("/dev/null", "0:b", "neither a file, a folder nor a symlink"),
        ("0:.", "no/such/place", "there is no folder no/such here"),
    ],
)
def test_what_cannot_be_copied_is_told(pair, source, target, words):
    with pytest.raises(gf.GpuFabricError, match=words):
        pair.cp(source, target)


def test_a_node_that_cannot_write_says_so(pair):
    with pytest.raises(gf.BackendError, match=r"node 0 .*tar in /proc ended with \d: .*Cannot"):
        pair.cp(__file__, "0:/proc/new")


def test_paths_of_nodes_are_told_from_paths_of_this_machine():
    assert split_path("C:/x") is None
    assert split_path("./0:x") is None
    remote = split_path("12:")
    assert (remote.rank, remote.path, remote.name) == (12, ".", "")


def stream(*infos):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info in infos:
            tar.addfile(info, io.BytesIO(b"bad") if info.isreg() else None)
    return io.BytesIO(out.getvalue())


def entry(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o7777
    info.size = 3 if kind == tarfile.REGTYPE else 0
    return info


SYM, HARD, DIR = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    "infos",
    [
        [entry("../evil")],
        [entry("/evil")],
        [entry("./a/../../evil")],
        [entry("a", SYM, "/etc")],
        [entry("a", SYM, "../..")],
        [entry("d", DIR), entry("d/a", SYM, "../../x")],
        [entry("a", SYM, "."), entry("a/evil")],
        [entry("a", HARD, "../evil")],
        [entry("a", HARD, "/etc/passwd")],
        [entry("here/evil")],
        [entry("here", DIR)],
        [entry("a", tarfile.FIFOTYPE)],
        [entry("a", tarfile.CHRTYPE)],
    ],
    ids=lambda infos: "+".join(f"{i.name}>{i.linkname}" for i in infos),
)
def test_no_entry_leaves_the_folder(tmp_path, infos):
    target = tmp_path / "in" / "to"
    target.mkdir(parents=True)
    (target / "here").symlink_to(tmp_path)
    with pytest.raises(gf.SpecError, match="is refused"):
        unpack(stream(*infos), target, ".")
    assert not list(tmp_path.rglob("evil"))


def test_no_program_gets_anothers_rights(tmp_path):
    unpack(stream(entry("./a")), tmp_path, ".")
    assert (tmp_path / "a").stat().st_mode & 0o7777 == 0o777


def test_a_file_that_becomes_shorter_is_told(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(bytes(600_000))
    pieces = tar_pieces(path, "log")
    next(pieces)
    os.truncate(path, 10)
    with pytest.raises(gf.SpecError, match="became shorter"):
        list(pieces)


def test_python3_does_what_tar_does_where_there_is_none(launch, tree, tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("python3", "sleep", "ls"):
        (tools / name).symlink_to(sys.executable if name == "python3" else shutil.which(name))
    job = launch(envs={"PATH": str(tools)})
    job.cp(tree, "0:there")
    job.cp("0:there", tmp_path / "back")
    assert listing(tmp_path / "back") == listing(tree)
    (tools / "python3").unlink()
    with pytest.raises(gf.BackendError, match="neither tar nor python3"):
        job.cp(tree, "0:again")


# Jupyter

#: As much of Jupyter as is used here; the real one is used on the real cluster.
FAKES = {
    "traitlets/__init__.py": "",
    "traitlets/config.py": """\
import collections
def Config():
    return Part()
class Part(dict):
    __getattr__ = lambda self, name: self.setdefault(name, Part())
    __setattr__ = dict.__setitem__
""",
    "jupyter_server/__init__.py": "",
    "jupyter_server/serverapp.py": """\
import http.server, os, signal, sys
class ServerApp:
    def write_server_info_file(self): raise SystemExit("it would hold the token")
    @classmethod
    def launch_instance(cls, argv, config):
        asked = config["ServerApp"]
        print("the token is", asked["token"], file=sys.stderr, flush=True)
        if os.environ.get("BROKEN"): raise SystemExit("broken on purpose")
        cls().write_server_info_file()
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                ok = self.headers["Authorization"] == "token " + config["IdentityProvider"]["token"]
                self.send_response(200 if ok else 403)
                self.end_headers()
        signal.signal(signal.SIGTERM, lambda *_: (open("ended", "w").close(), os._exit(0)))
        http.server.HTTPServer((asked["ip"], asked["port"]), Handler).serve_forever()
""",
}


@pytest.fixture
def fakes(tmp_path):
    for name, text in FAKES.items():
        path = tmp_path / "fakes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"PYTHONPATH": str(tmp_path / "fakes")}


def test_jupyter_answers_to_its_token_alone_and_ends_with_the_block(launch, fakes, caplog):
    job = launch(envs=fakes)
    before = set(threading.enumerate())
    with job.jupyter() as server:
        token = server.url.partition("token=")[2]
        assert len(token) >= 32
        shown = f"{server!r} {server} {server.words()} {job!r} {caplog.text}"
        assert token not in shown
        assert "the token is ***" in server.words()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/status")
        assert not any(token.encode() in line for line in command_lines())
        told = job.exec("cat /proc/[0-9]*/environ 2>/dev/null; grep -r . . 2>/dev/null").stdout
        assert token.encode() not in told
    assert job.exec("ls").text == "ended\n"
    assert set(threading.enumerate()) <= before


def test_jupyter_ends_when_its_caller_is_gone(launch, fakes, place):
    job = launch(envs=fakes)
    with job.jupyter() as server:
        server._running.stdin.close()  # as when this process is killed
        assert server._running.wait(10) == 0
        assert server.ended()


def test_jupyter_that_is_missing_or_broken_is_told(launch, fakes, tmp_path):
    (tmp_path / "jupyter_server.py").write_text("raise ImportError('there is none')")
    with pytest.raises(gf.BackendError, match=r"(?s)has no jupyter_server.*lab.*there is none"):
        launch(envs={"PYTHONPATH": str(tmp_path)}).jupyter()
    job = launch(envs={**fakes, "BROKEN": "1"})
    with pytest.raises(gf.BackendError, match=r"(?s)Jupyter ended: .*broken on purpose") as told:
        job.jupyter()
    assert "***" in str(told.value)


# ssh

needs_sshd = pytest.mark.skipif(
    not (shutil.which("sshd", path="/usr/sbin:/usr/bin") and shutil.which("ssh")),
    reason="this machine has no OpenSSH server and client",
)


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


@pytest.fixture
def ssh(pair, key, tmp_path):
    """Runs ssh, scp or rsync with the configuration of a job."""
    config = tmp_path / "ssh config"
    config.write_text(pair.ssh_config(public_key=f"{key}.pub"))

    def run(program, *words, **fields):
        words = [str(word).replace("@", f"{pair.ref.name}-") for word in words]
        return subprocess.run(
            [program, "-F", config, *words], check=False, capture_output=True, timeout=60, **fields
        )

    return run


@needs_sshd
def test_ssh_gives_the_jobs_environment_folder_and_exit_codes(ssh):
    done = ssh("ssh", "@1", 'echo "$GREETING $TOKEN $NODE_RANK"; pwd; cat; exit 5', input=b"in")
    assert done.stdout.startswith(b"a $b hush 1\n")
    assert done.stdout.endswith(b"work\nin")
    assert done.returncode == 5, done.stderr
    assert ssh("ssh", "-tt", "@0", "tty").stdout.startswith(b"/dev/pts/")


@needs_sshd
def test_scp_carries_much_both_ways(ssh, tmp_path):
    data = os.urandom(3 << 20)
    (tmp_path / "there").write_bytes(data)
    assert ssh("scp", tmp_path / "there", "@0:copied").returncode == 0
    done = ssh("scp", "@0:copied", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data, done.stderr


@needs_sshd
def test_no_other_key_is_let_in_and_no_secret_is_written(ssh, pair, tmp_path, place):
    assert ssh("ssh", "@0", "true").returncode == 0
    refused = ssh("ssh", "-o", "IdentityAgent=none", "-o", "PubkeyAuthentication=no", "@0", "true")
    assert refused.returncode == 255
    assert b"Permission denied" in refused.stderr
    found = pair.exec("grep -rl hush .gpufabric-ssh; ls -ld .gpufabric-ssh/host").text
    assert found.startswith("-rw-------")


def test_ssh_needs_a_server_in_the_image(launch, tmp_path, monkeypatch):
    job = launch(envs={"PATH": "/nowhere"}, run=["/bin/sleep", "300"])
    monkeypatch.setattr("gpufabric._ssh._FIND", gf_ssh._FIND.partition("\n")[2])
    with pytest.raises(gf.BackendError, match=r"no sshd: ssh needs openssh-server"):
        job.ssh_config(public_key=KEY)


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIATJTskQ5J+02SPrKVi8NbXl me@here"


def test_a_key_may_be_text_or_a_file_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert gf_ssh.read_key(KEY) == (KEY, None)
    with pytest.raises(gf.SpecError, match="ssh-keygen -t ed25519 makes one"):
        gf_ssh.read_key(None)
    (tmp_path / ".ssh").mkdir()
    own = tmp_path / ".ssh" / "id_rsa.pub"
    own.write_text(KEY + "\n")
    assert gf_ssh.read_key(None) == (KEY, own)
    secret = "-----BEGIN OPENSSH PRIVATE KEY-----\nhush\n"
    own.write_text(secret)
    for given in (own, secret, "hush hush\nhush", KEY + "\n" + KEY, tmp_path / "none"):
        with pytest.raises(gf.SpecError, match="public_key") as told:
            gf_ssh.read_key(given)
        assert "hush" not in str(told.value)


def test_a_configuration_leads_another_process_to_the_place():
    ref = gf.JobRef.parse("kubernetes://prod/ml/train-1")
    text = gf_ssh.config_text(
        ref, ranks=[0, 1], user="me", key="ssh-x y 100%", key_file=None, env={"KUBECONFIG": "/a b"}
    )
    assert "Host train-1-0\n  User me\n" in text
    assert "ProxyCommand env 'KUBECONFIG=/a b' " in text
    assert "connect kubernetes://prod/ml/train-1 1 --key 'ssh-x y 100%%'\n" in text
    assert "IdentityFile" not in text


# from a shell


def command(*words):
    return [sys.executable, "-m", "gpufabric", *map(str, words)]


def test_a_shell_runs_commands_copies_and_reaches_ports(echo, tmp_path):
    job, port = echo
    words = command("exec", job.ref, "--", "sh", "-c", "cat; echo err >&2; exit 3")
    done = subprocess.run(words, input=b"in", capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"in", b"err\n")
    subprocess.run(command("cp", job.ref, __file__, "0:copied.py"), check=True, timeout=60)
    subprocess.run(command("cp", job.ref, "0:copied.py", tmp_path), check=True, timeout=60)
    assert (tmp_path / "copied.py").read_bytes() == Path(__file__).read_bytes()
    with subprocess.Popen(command("port-forward", job.ref, port), stdout=subprocess.PIPE) as at:
        host, _, local = at.stdout.readline().decode().partition(":")
        with socket.create_connection((host, int(local)), 30) as sock:
            sock.sendall(b"hello")
            assert sock.recv(5) == b"hello"
        at.send_signal(signal.SIGINT)
        assert at.wait(30) == 130


def test_a_command_whose_output_nobody_reads_any_more_is_ended(launch):
    words = command("exec", launch().ref, "--", "yes")
    with subprocess.Popen(words, stdout=subprocess.PIPE) as at:
        assert at.stdout.readline() == b"y\n"
        at.stdout.close()
        assert at.wait(60) == 128 + signal.SIGPIPE


def test_all_that_a_command_said_last_is_told(launch):
    words = command("exec", launch().ref, "--", "sh", "-c", "head -c 300000 /dev/zero >&2; exit 3")
    done = subprocess.run(words, capture_output=True, check=False, timeout=60)
    assert (done.returncode, len(done.stderr)) == (3, 300_000)


def test_a_shell_that_forwards_a_port_is_told_that_nothing_listens_there(launch):
    words = command("port-forward", launch().ref, 1)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as at:
        host, _, local = at.stdout.readline().decode().partition(":")
        with socket.create_connection((host, int(local)), 30):
            told = at.stderr.readline().decode()
        at.send_signal(signal.SIGINT)
        assert at.wait(30) == 130
    assert told.startswith(f"gpufabric: port {int(local)}: ")
    assert told.endswith("port 1: Connection refused\n")


def test_a_shell_is_told_what_is_wrong(launch):
    words = command("exec", "--node-rank", "1", launch().ref, "true")
    done = subprocess.run(words, capture_output=True, check=False, timeout=60, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpufabric: node_rank: 1 is not within 0 to 0\n"


# awaited


def test_the_same_calls_are_awaited(place, tmp_path):
    async def work():
        async with gf.AsyncFabric(place) as fabric:
            job = await fabric.launch(gf.Task(run=LASTING, name="live"))
            async with job:
                assert (await job.exec("echo hi")).text == "hi\n"
                assert [done.exit_code for done in await job.exec("exit 2", node_rank=None)] == [2]
                await job.cp(__file__, "0:x")
                async with job.port_forward(1) as forward:
                    assert forward.port

    asyncio.run(work())


def test_a_command_that_nobody_awaits_any_more_is_ended(place):
    async def work():
        async with (
            gf.AsyncFabric(place) as fabric,
            await fabric.launch(gf.Task(run=LASTING, name="live")) as job,
        ):
            for rank in (0, None):
                waiting = asyncio.create_task(job.exec("echo > up; sleep 4246", node_rank=rank))
                await job.exec("until [ -e up ]; do sleep 0.01; done; rm up")
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting

    asyncio.run(work())
    until_ended(b"sleep\x004246")


class Slow(gf.Local):
    """A place whose status is told when it may be."""

    def __init__(self, root):
        super().__init__(root, gf.Settings(trust_env=False, stop_grace_s=1.0))
        self.asked, self.may = threading.Event(), threading.Event()
        self.applied = []

    def apply(self, plan):
        self.applied.append(plan.name)
        return super().apply(plan)

    def status(self, ref):
        self.asked.set()
        assert self.may.wait(60)
        return super().status(ref)


def test_a_forward_that_nobody_awaits_any_more_is_closed(tmp_path):
    place = Slow(tmp_path)

    async def forward(job):
        async with job.port_forward(1):
            raise AssertionError

    async def work():
        async with (
            gf.AsyncFabric(place, workers=1) as fabric,
            await fabric.launch(gf.Task(run=LASTING, name="live")) as job,
        ):
            waiting = asyncio.create_task(forward(job))
            await asyncio.to_thread(place.asked.wait, 60)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            place.may.set()
            await job.status()  # after all that the one worker had to do
            left = [one.name for one in threading.enumerate() if "gpufabric-port" in one.name]
            assert left == []

    asyncio.run(work())


def test_a_launch_that_is_cancelled_before_it_begins_makes_nothing(tmp_path):
    place = Slow(tmp_path)

    async def work():
        async with (
            gf.AsyncFabric(place, workers=1) as fabric,
            await fabric.launch(gf.Task(run=LASTING, name="live")) as job,
        ):
            status = asyncio.create_task(job.status())
            await asyncio.to_thread(place.asked.wait, 60)
            waiting = asyncio.create_task(fabric.launch(gf.Task(run="touch made", name="never")))
            await asyncio.sleep(0)  # it waits for the one worker
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            place.may.set()
            await status
            assert list(await fabric.jobs()) == [job.ref]
            assert place.applied == [job.ref.name]

    asyncio.run(work())
