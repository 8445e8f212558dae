"""The script that starts a node, run by real shells with the few programs of small images."""

import ctypes
import gzip
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scriptnode import Node

from gpufabric.backends.kubernetes._code import packed
from gpufabric.backends.kubernetes._helper import ASK, SERVE, TAKE
from gpufabric.task import Task

TOKEN = "t0k"
UNPACKERS = {
    "coreutils": ("sha256sum", "gzip", "tar"),
    "python3": ("python3",),
}


@pytest.fixture
def node(tmp_path, shell):
    made = Node(tmp_path, shell)
    yield made
    made.end()


@pytest.fixture
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("src")
    (folder / "pkg").mkdir()
    (folder / "pkg" / "a.txt").write_text("from workdir\n")
    (folder / "b.txt").write_text("old\n")
    (folder / "link").symlink_to("pkg/a.txt")
    return Task(run="x", workdir=str(folder), files={"b.txt": "from files\n", "deep/c.txt": "c\n"})


@pytest.mark.parametrize("tools", UNPACKERS.values(), ids=UNPACKERS)
def test_code_is_checked_and_unpacked_with_what_the_image_has(node, task, tools):
    node.bring(task)
    node.tools(*tools)
    done = node.run("cat", "link", "b.txt", "deep/c.txt")
    assert done == (0, "from workdir\nfrom files\nc\n", "")


@pytest.mark.parametrize("tools", UNPACKERS.values(), ids=UNPACKERS)
@pytest.mark.parametrize("what", ["another", "cut", "no-archive"])
def test_code_that_is_not_what_was_launched_is_not_unpacked(node, task, tools, what):
    node.bring(task)
    node.tools(*tools)
    part = node.root / "code" / "workdir.tar.gz"
    old = part.read_bytes()
    part.write_bytes(
        {"another": gzip.compress(b"x"), "cut": old[: len(old) // 2], "no-archive": b"x"}[what]
    )
    code, out, err = node.run("ls")
    assert (code, out) == (66, "")
    assert "gpufabric: workdir.tar.gz is not what was launched" in err
    assert list((node.root / "work").iterdir()) == []


def test_a_part_that_is_missing_is_told(node, task):
    node.bring(task)
    node.tools("python3")
    (node.root / "code" / "files.tar.gz").unlink()
    code, _, err = node.run("ls")
    assert code == 66
    assert "files.tar.gz is not there" in err


@pytest.mark.parametrize("lacking", UNPACKERS["coreutils"])
def test_an_image_that_cannot_check_the_code_is_refused_in_words(node, task, lacking):
    if node.shell[-1] == "sh" and "busybox" in node.shell[0]:
        pytest.skip("busybox has them all in itself")
    node.bring(task)
    node.tools(*(tool for tool in UNPACKERS["coreutils"] if tool != lacking))
    code, out, err = node.run("ls")
    assert (code, out) == (66, "")
    assert f"neither {lacking} nor python3" in err


def test_the_code_of_a_task_is_no_variable_of_its_command(node, task):
    node.bring(task)
    node.tools("python3")
    _, out, _ = node.run("env")
    assert "GPUFABRIC_CODE=" not in out
    assert "GPUFABRIC_POD_IP=" not in out


# ---- code that a pod serves


@pytest.fixture
def helper(tmp_path):
    """The programs of the pod that serves, as processes of this machine."""
    made = Helper(tmp_path)
    yield made
    made.stop()


class Helper:
    def __init__(self, root: Path):
        self.folder = root / "served"
        self.folder.mkdir()
        self.process = None

    def start(self, port: int = 0) -> int:
        text = SERVE.replace(
            "server.serve_forever()",
            "print(server.socket.getsockname()[1], flush=True); server.serve_forever()",
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", text, str(self.folder), str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        return int(self.process.stdout.readline())

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait(timeout=10) == 0
            self.process.stdout.close()
            self.process = None

    def take(self, sent: bytes) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", TAKE, str(self.folder)]
        return subprocess.run(command, input=sent, capture_output=True, check=False)

    def asked(self) -> str:
        command = [sys.executable, "-c", ASK, str(self.folder)]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def upload(task: Task, token: str = TOKEN, name: str = "1") -> tuple[bytes, str]:
    import json

    with packed(task, limit_bytes=1e8) as code:
        parts = [[part.key, part.size] for part in code.parts]
        sent = json.dumps({"id": name, "token": token, "parts": parts}).encode() + b"\n"
        for part in code.parts:
            data = code.read(part.key)
            sent += data + hashlib.sha256(data).hexdigest().encode()
        return sent, code.manifest


def announced(node: Node, port: int, token: str = TOKEN) -> None:
    for key, text in {"address": f"127.0.0.1:{port}", "token": token, "pod": "gf-code"}.items():
        (node.root / "code" / key).write_text(text)


def test_served_code_is_fetched_checked_and_unpacked(node, task, helper):
    sent, node.code_env = upload(task)
    assert helper.take(sent).stdout == b"t0k\n"
    announced(node, helper.start())
    node.tools("python3")
    done = node.run("cat", "link", "b.txt", "deep/c.txt")
    assert done == (0, "from workdir\nfrom files\nc\n", "")
    assert list((node.root / "fetched").iterdir()) == []


def test_a_node_waits_for_the_pod_that_serves_and_follows_it(node, task, helper):
    sent, node.code_env = upload(task)
    helper.take(sent)
    port = helper.start()
    helper.stop()
    announced(node, port)
    node.tools("python3")
    process = node.start("cat", "b.txt")
    first = process.stderr.readline()
    assert f"pod gf-code at 127.0.0.1:{port} does not give workdir.tar.gz" in first
    assert "trying again for 180 s" in first
    announced(node, helper.start())
    out, rest = process.communicate(timeout=60)
    assert (process.returncode, out, rest) == (0, "from files\n", "")


@pytest.mark.parametrize(
    ("token", "words"), [("wrong", "it answers 401"), ("t0k", "the code is still on its way")]
)
def test_a_node_says_why_it_has_no_code(node, task, helper, token, words):
    sent, node.code_env = upload(task)
    if token == "wrong":
        helper.take(sent)
    announced(node, helper.start(), token)
    node.tools("python3")
    script = node.script().replace('"180"', '"0"')
    code, out, err = node.run("ls", script=script)
    assert (code, out) == (66, "")
    assert words in err
    assert "a launch of the same code makes a new one" in err


def test_what_is_cut_or_changed_on_the_way_is_not_taken(task, helper):
    sent, _ = upload(task)
    for broken in (sent[:-70], sent[:-64] + b"0" * 64, sent[: len(sent) // 2]):
        assert helper.take(broken).returncode == 1
        assert list(helper.folder.iterdir()) == []
    assert helper.asked() == ""


def test_of_two_uploads_the_first_token_holds(task, helper):
    first, second = upload(task)[0], upload(task, token="other", name="2")[0]
    assert helper.take(first).stdout == b"t0k\n"
    assert helper.take(second).stdout == b"t0k\n"
    assert helper.asked() == "t0k"


def test_a_path_out_of_the_folder_is_not_served(task, helper):
    import http.client

    helper.take(upload(task)[0])
    server = http.client.HTTPConnection("127.0.0.1", helper.start())
    for path in ("/token", "/../served/token", "//etc/passwd", "/"):
        server.request("GET", path, headers={"Authorization": "Bearer t0k"})
        answer = server.getresponse()
        answer.read()
        assert answer.status == 404
    server.close()


# ---- the command


@pytest.fixture
def bare(node):
    node.tools()
    return node


def test_the_exit_code_is_that_of_the_command(bare):
    plain = bare.script(code=False)
    assert bare.run("/bin/sh", "-c", "exit 7", script=plain)[0] == 7
    assert bare.run("/bin/sh", "-c", "kill -KILL $$", script=plain)[0] == 137
    assert bare.run("no-such-program", script=plain)[0] == 127
    assert bare.run("/bin/sh", "-c", "exit 0", script=plain, setup="exit 9")[0] == 9


def test_words_reach_the_command_as_they_are(bare):
    words = ["a b", "$HOME", "", "'\"", "x\ny", "*"]
    text = 'for word in "$@"; do echo "<$word>"; done'
    done = bare.run("/bin/sh", "-c", text, "sh", *words, script=bare.script(code=False))
    assert done == (0, "".join(f"<{word}>\n" for word in words), "")


@pytest.mark.parametrize("where", ["setup", "command"])
def test_a_stop_reaches_what_runs_and_its_code_is_kept(bare, where):
    text = "trap 'echo stopping; exit 5' TERM; echo up; while :; do sleep 0.05; done"
    given = {"setup": text} if where == "setup" else {}
    process = bare.start("/bin/sh", "-c", text, script=bare.script(code=False), **given)
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (5, "stopping\n")


def test_a_stop_that_comes_while_the_command_is_started_reaches_it(bare):
    """At moments from before the fork to after it; one that is lost would run into its limit."""
    note = bare.root / "work" / ".gpufabric-env"  # the last that is done before
    for turn in range(40):
        process = bare.start("/bin/sleep", "60", script=bare.script(code=False))
        while not note.exists():
            assert process.poll() is None
        note.unlink()
        moment = time.perf_counter() + turn * 0.000_1
        while time.perf_counter() < moment:
            pass
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 143


def test_a_stop_while_code_is_awaited_ends_the_node(node, task, helper):
    _, node.code_env = upload(task)
    announced(node, helper.start())
    node.tools("python3")
    process = node.start("ls")
    assert "on its way" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143


def test_orphans_of_the_command_are_reaped(bare):
    """The shell is process 1 of a container; PR_SET_CHILD_SUBREAPER makes it so here."""

    def adopt() -> None:
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)

    orphan = "(sleep 0.1; echo gone) & (sleep 0.05 &) ; echo $PPID"
    text = f"/bin/sh -c '{orphan}'; exec sleep infinity"
    process = bare.start(
        "/bin/sh",
        "-c",
        text,
        script=bare.script(code=False),
        preexec_fn=adopt,
    )
    process.stdout.readline()
    assert process.stdout.readline() == "gone\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    while len(children.read_text().split()) > 1:  # else the command alone is left
        os.sched_yield()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)


# ---- the other nodes


def test_the_addresses_of_all_nodes_are_found_by_their_names(node):
    node.tools()
    stub = node.root / "bin" / "getent"
    stub.write_text(
        '#!/bin/sh\ncase $2 in gang-n-0-0.gang) echo "10.0.0.7  $2";;'
        ' gang-n-0-1.gang) echo "fd00::8  $2 x";; *) exit 2;; esac\n'
    )
    stub.chmod(0o755)
    text = 'echo "$GPUFABRIC_NODE_IPS|$GPUFABRIC_NODE_RANK"'
    done = node.run(
        "/bin/sh", "-c", text, script=node.script(num_nodes=2, code=False),
        env={"JOB_COMPLETION_INDEX": "1"},
    )  # fmt: skip
    assert done == (0, "10.0.0.7\nfd00::8|1\n", "")


def test_an_image_that_cannot_find_the_nodes_is_refused_in_words(node):
    node.tools()
    code, _, err = node.run("ls", script=node.script(num_nodes=2, code=False))
    assert code == 69
    assert "neither getent nor python3" in err
