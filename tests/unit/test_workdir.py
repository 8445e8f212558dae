"""A work folder as one archive: reproducible, honest about what it leaves out."""

import io
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from gpufabric._workdir import DATE, Packed, pack
from gpufabric.errors import SpecError


def packed(folder: Path, *, limit_bytes: float = 1e8) -> tuple[Packed, bytes]:
    out = io.BytesIO()
    return pack(folder, out, limit_bytes=limit_bytes), out.getvalue()


def names(folder: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(packed(folder)[1])) as tar:
        return tar.getnames()


def tree(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return folder


def test_the_same_content_gives_the_same_bytes_whenever_and_wherever(tmp_path):
    one = tree(tmp_path / "one", "b", "a/c", "a/b")
    two = tree(tmp_path / "two", "a/b", "b", "a/c")
    os.utime(two / "b", (1, 1))
    (two / "b").chmod(0o600)
    first, first_bytes = packed(one)
    second, second_bytes = packed(two)
    assert first_bytes == second_bytes
    assert first == second
    (two / "b").write_text("other")
    assert packed(two)[0].sha256 != first.sha256


def test_no_owner_and_no_time_of_this_machine_is_in_it(tmp_path):
    tree(tmp_path, "a", "x/run")
    (tmp_path / "x/run").chmod(0o700)
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path)[1])) as tar:
        members = {member.name: member for member in tar}
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members.values()} == {
        (0, 0, "", "", DATE)
    }
    assert {name: oct(m.mode) for name, m in members.items()} == {
        "a": "0o644", "x": "0o755", "x/run": "0o755",
    }  # fmt: skip


def test_symlinks_stay_symlinks_wherever_they_lead(tmp_path):
    tree(tmp_path, "a")
    (tmp_path / "in").symlink_to("a")
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "dangling").symlink_to("nowhere")
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path)[1])) as tar:
        links = {member.name: member.linkname for member in tar if member.issym()}
    assert links == {"in": "a", "out": "/etc/passwd", "loop": ".", "dangling": "nowhere"}


def test_sockets_fifos_and_devices_are_left_out_and_told(tmp_path):
    tree(tmp_path, "a")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "sock"))
        found, _ = packed(tmp_path)
    assert found.skipped == ("fifo: a FIFO, left out", "sock: a socket, left out")
    assert names(tmp_path) == ["a"]


def test_empty_folders_odd_names_and_long_names_are_kept(tmp_path):
    (tmp_path / "empty").mkdir()
    odd = ["new\nline", "größe", " lead", "q'\"q", os.fsdecode(b"not-utf8-\xff"), "x" * 250]
    tree(tmp_path, *[name for name in odd if "\udcff" not in name])
    (tmp_path / odd[4]).write_bytes(b"")
    assert sorted(names(tmp_path)) == sorted([*odd, "empty"])


IGNORES = {
    ".gitignore": "*.log\n/build\nnode_modules/\n!keep.log\n# comment\n\\#hash\nsub/only\n",
    "a.log": "", "keep.log": "", "sub/b.log": "", "build/x": "", "sub/build/x": "",
    "node_modules/m/x": "", "sub/node_modules/y": "", "#hash": "", "sub/only": "", "only": "",
    "sub/.gitignore": "!b.log\nsecret*\n/top\n", "sub/secret.txt": "", "secret.txt": "",
    "sub/top": "", "sub/deep/top": "", "sub/deep/secret1": "",
    "sub/deep/.gitignore": "!secret1\n**/any\n", "sub/deep/q/any": "", "any": "",
    "spaced ": "", "trailing/x.pyc": "", "trailing/.gitignore": "*.py[co]\n", "x.pyc": "",
}  # fmt: skip


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git itself")
def test_what_git_ignores_is_left_out_and_nothing_else(tmp_path):
    for name, text in IGNORES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "no"), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, env=env, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=tmp_path, env=env, check=True, capture_output=True,
    ).stdout  # fmt: skip
    expected = sorted(filter(None, listed.decode().split("\0")))
    kept = [name for name in names(tmp_path) if not (tmp_path / name).is_dir()]
    assert sorted(kept) == expected
    assert ".git" not in names(tmp_path)


def test_our_own_ignore_file_wins_over_git_s_and_may_take_back(tmp_path):
    tree(tmp_path, "weights.bin", "data.csv", "code.py")
    (tmp_path / ".gitignore").write_text("weights.bin\n")
    (tmp_path / ".gpufabricignore").write_text("!weights.bin\n*.csv\n")
    assert [name for name in names(tmp_path) if not name.startswith(".")] == [
        "code.py",
        "weights.bin",
    ]
    assert packed(tmp_path)[0].ignored == 1


def test_a_folder_over_the_limit_is_refused_and_the_biggest_are_named(tmp_path):
    tree(tmp_path, "small.py")
    (tmp_path / "ckpt").mkdir()
    for i in range(3):
        (tmp_path / "ckpt" / f"{i}.bin").write_bytes(bytes(1_000_000 * (i + 1)))
    with pytest.raises(SpecError) as raised:
        packed(tmp_path, limit_bytes=2e6)
    text = str(raised.value)
    assert text.startswith(
        "workdir: 6.0 MB, more than the limit of 2 MB; the biggest: ckpt/ (6.0 MB)"
    )
    assert "ckpt/2.bin (3.0 MB)" in text
    assert ".gpufabricignore" in text
    assert packed(tmp_path, limit_bytes=7e6)[0].files == 4


def test_what_is_too_big_but_ignored_is_no_problem(tmp_path):
    tree(tmp_path, "a")
    (tmp_path / "big").write_bytes(bytes(2_000_000))
    (tmp_path / ".gpufabricignore").write_text("big\n")
    assert "big" not in names(tmp_path)
    packed(tmp_path, limit_bytes=1e6)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_every_file_that_cannot_be_read_is_named(tmp_path):
    tree(tmp_path, "a", "b", "c/d")
    (tmp_path / "a").chmod(0)
    (tmp_path / "c").chmod(0)
    try:
        with pytest.raises(SpecError) as raised:
            packed(tmp_path)
    finally:
        (tmp_path / "c").chmod(0o700)
    assert [problem.message for problem in raised.value.problems] == [
        "a: Permission denied",
        "c: Permission denied",
    ]


def test_a_file_that_cannot_be_read_is_named_even_by_root(tmp_path, monkeypatch):
    tree(tmp_path, "a", "b")
    monkeypatch.setattr("gpufabric._workdir.os.access", lambda path, _: not path.endswith("b"))
    with pytest.raises(SpecError, match="workdir: b: Permission denied"):
        packed(tmp_path)


def test_a_file_that_shrinks_while_it_is_packed_is_an_error_not_a_wrong_archive(
    tmp_path, monkeypatch
):
    tree(tmp_path, "a", "b")
    real = os.access

    def shrink(path: str, mode: int) -> bool:
        (tmp_path / "b").write_bytes(b"")
        return real(path, mode)

    (tmp_path / "b").write_bytes(bytes(100_000))
    monkeypatch.setattr("gpufabric._workdir.os.access", shrink)
    with pytest.raises(SpecError, match="changed while it was packed"):
        packed(tmp_path)


@pytest.mark.parametrize(
    ("name", "says"), [("none", "does not exist"), ("file", "is not a folder")]
)
def test_what_is_no_folder_is_refused(tmp_path, name, says):
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match=says):
        packed(tmp_path / name)


def test_a_wheel_can_be_built_of_files_with_this_date(tmp_path):
    import zipfile

    (tmp_path / "f").touch()
    os.utime(tmp_path / "f", (DATE, DATE))
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.write(tmp_path / "f")
