"""Copies files and folders to and from nodes, as a tar stream over `exec`."""

import contextlib
import io
import os
import posixpath
import re
import select
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from gpufabric._frozen import frozen
from gpufabric._live import exec_on, exec_on_all
from gpufabric._pause import pause
from gpufabric.backends.base import Command, Live
from gpufabric.errors import BackendError, NotFoundError, Problem, Remedy, SpecError
from gpufabric.job import ExecResult, JobRef

__all__ = ["RemotePath", "copy", "split_path", "tar_pieces", "unpack"]

_REMOTE = re.compile(r"^(\d+|\*):(.*)$", re.DOTALL)
_CHUNK = 1 << 18
_TAIL_BYTES = 4096
_LOOK_MS = 100
#: What is there, and what can pack: a line each.
_LOOK = """\
if [ -d "$1" ]; then echo folder
elif [ -f "$1" ] && [ -L "$1" ]; then echo link
elif [ -e "$1" ] || [ -L "$1" ]; then echo file
elif [ -d "$2" ]; then echo free
else echo nowhere; fi
if command -v tar >/dev/null; then echo tar
elif command -v python3 >/dev/null; then echo python3
else echo none; fi"""
_TAKE = {
    "tar": 'cd "$1" && exec tar -xf -',
    "python3": """\
exec python3 -c 'import sys, tarfile
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
    more = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
    tar.extractall(sys.argv[1], **more)' "$1\"""",
}
_GIVE = {
    "tar": 'cd "$1" && exec tar -c$3f - -- "$2"',
    "python3": """\
cd "$1" && exec python3 -c 'import sys, tarfile
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.GNU_FORMAT,
                  dereference=sys.argv[2] == "h") as tar:
    tar.add(sys.argv[1])' "$2" "$3\"""",
}


@frozen(kw_only=True)
class RemotePath:
    """A path on a node, or on all of them where `rank` is None."""

    rank: int | None
    path: str

    @property
    def name(self) -> str:
        """The last part; empty where the folder itself is meant, not its name."""
        last = posixpath.basename(self.path.rstrip("/"))
        return "" if last in {".", ".."} else last

    @property
    def parent(self) -> str:
        """The folder that it is in."""
        return posixpath.dirname(self.path.rstrip("/")) or ("/" if self.path[:1] == "/" else ".")


def split_path(text: str) -> RemotePath | None:
    """`2:/data/x` as rank and path, None for a path of this machine."""
    match = _REMOTE.match(text)
    if match is None:
        return None
    rank, path = match.groups()
    return RemotePath(rank=None if rank == "*" else int(rank), path=path or ".")


def copy(
    live: Live, ref: JobRef, source: str, target: str, *, ranks: Callable[[], list[int]]
) -> None:
    """Copies between this machine and a node. `ranks` lists the nodes, for `*`."""
    there, here = split_path(source), split_path(target)
    if (there is None) == (here is None):
        told = "both are of this machine" if there is None else "both are on nodes"
        raise SpecError(
            [Problem(path="cp", message=f"{told}: one of them is RANK:PATH, such as 0:/data; a path"
                     " of this machine with a colon begins with ./")]
        )  # fmt: skip
    if here is not None:
        if here.rank is not None:
            _upload(live, ref, source, here, here.rank)
            return
        exec_on_all(ranks(), lambda rank: _upload(live, ref, source, here, rank))
    elif there is not None:
        if there.rank is None:
            raise SpecError([Problem(path="cp", message="copy from one node, not from all")])
        _download(live, ref, there, there.rank, target)


def _look(live: Live, ref: JobRef, path: RemotePath, rank: int) -> tuple[str, str]:
    words = ["/bin/sh", "-c", _LOOK, "gpufabric", path.path, path.parent]
    found = exec_on(live, ref, words, node_rank=rank)
    what, _, tool = found.text.strip().partition("\n")
    if tool not in _TAKE:
        raise _error(ref, rank, f"the image has neither tar nor python3, one of which cp needs;"
                     f" found {tool or found.stderr!r}", Remedy.FIX_SETUP)  # fmt: skip
    return what, tool


def _error(ref: JobRef, rank: int, words: str, remedy: Remedy = Remedy.FIX_REQUEST) -> BackendError:
    return BackendError(
        f"node {rank} of {ref}: {words}", backend=ref.backend, operation="cp", remedy=remedy
    )


# ---- to a node


def _upload(live: Live, ref: JobRef, source: str, target: RemotePath, rank: int) -> ExecResult:
    path = Path(source)
    if path.is_symlink():  # what is named is meant, as by cp -H
        path = path.resolve()
    if not os.path.lexists(path):
        raise SpecError([Problem(path="cp", message=f"{source} is not on this machine")])
    what, tool = _look(live, ref, target, rank)
    name = os.path.basename(source.rstrip("/"))  # noqa: PTH119  # Path drops a last dot
    if name in {".", ".."}:
        name = ""
    if what == "folder":
        folder, inside = target.path, name
    elif target.path.endswith("/") or what == "nowhere":
        missing = target.path if target.path.endswith("/") else target.parent
        raise _error(ref, rank, f"there is no folder {missing}; exec('mkdir -p ...') makes one")
    else:
        folder, inside = target.parent, target.name
    if not inside and not path.is_dir():
        raise SpecError([Problem(path="cp", message=f"{source} is no folder")])
    words = ["/bin/sh", "-c", _TAKE[tool], "gpufabric", folder]
    done = exec_on(live, ref, words, node_rank=rank, stdin=tar_pieces(path, inside))
    if done.exit_code != 0:
        said = done.stderr[-_TAIL_BYTES:].decode("utf-8", "backslashreplace").strip()
        raise _error(ref, rank, f"{tool} in {folder} ended with {done.exit_code}: {said}")
    return done


def tar_pieces(path: Path, name: str) -> Iterator[bytes]:
    """A tar stream of a file or folder under another name; what is neither is refused.

    Symlinks stay symlinks. Owners are left out: what is unpacked is its unpacker's.
    """
    for at, inside in _walk(path, name):
        info = _described(at, inside)
        yield info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        if info.isreg():
            yield from _content(at, info.size)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _walk(path: Path, name: str) -> Iterator[tuple[Path, str]]:
    if name:
        yield path, name
    if path.is_dir() and not (name and path.is_symlink()):
        for one in sorted(path.iterdir()):
            yield from _walk(one, posixpath.join(name, one.name))


def _described(path: Path, name: str) -> tarfile.TarInfo:
    found = path.lstat()
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = stat.S_IMODE(found.st_mode), found.st_mtime
    if stat.S_ISREG(found.st_mode):
        info.size = found.st_size
    elif stat.S_ISDIR(found.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(found.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
    else:
        told = f"{path} is neither a file, a folder nor a symlink, so it cannot be copied"
        raise SpecError([Problem(path="cp", message=told)])
    return info


def _content(path: Path, size: int) -> Iterator[bytes]:
    left = size
    with path.open("rb") as file:
        while left:
            part = file.read(min(_CHUNK, left))
            if not part:
                told = f"{path} became shorter while it was copied; what arrived is not whole"
                raise SpecError([Problem(path="cp", message=told)])
            left -= len(part)
            yield part
    yield bytes(-size % tarfile.BLOCKSIZE)


# ---- from a node


def _download(live: Live, ref: JobRef, source: RemotePath, rank: int, target: str) -> None:
    what, tool = _look(live, ref, source, rank)
    if what not in {"folder", "file", "link"}:
        raise NotFoundError(
            f"node {rank} of {ref} has no {source.path}", backend=ref.backend, operation="cp"
        )
    folder, name = source.parent, source.name
    if what == "folder":  # through a symlink too
        folder, name = source.path, "."
    to = Path(target)
    if to.is_dir() and source.name:
        to /= source.name
    elif target.endswith("/") and not to.is_dir():
        raise SpecError([Problem(path="cp", message=f"there is no folder {target} here")])
    elif not to.parent.is_dir():
        raise SpecError([Problem(path="cp", message=f"there is no folder {to.parent} here")])
    words = ["/bin/sh", "-c", _GIVE[tool], "gpufabric", folder, name,
             "h" if what == "link" else ""]  # fmt: skip
    running = live.exec(ref, words, node_rank=rank)
    stream, said = _Reader(running.stdout), bytearray()
    drain = threading.Thread(target=_drain, args=(running, said), name="gpufabric-cp", daemon=True)
    drain.start()
    broken: tarfile.TarError | None = None
    try:
        try:
            unpack(stream, to, name)
        except tarfile.TarError as exc:
            broken = exc
        while stream.read(_CHUNK):  # tar fills its last block
            pass
        code = running.wait()
    finally:
        running.close()
        drain.join()
    if code != 0 or broken is not None:
        words_of_tar = said.decode("utf-8", "backslashreplace").strip() or str(broken)
        raise _error(ref, rank, f"{tool} in {folder} ended with {code}, and what came of it is not"
                     f" whole: {words_of_tar}")  # fmt: skip


class _Reader(io.RawIOBase):
    """Reads a pipe, until nobody awaits it any more."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._fd = pipe.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def read(self, size: int = -1) -> bytes:
        while not self._poll.poll(_LOOK_MS):
            pause(0)
        pause(0)
        return os.read(self._fd, size if size >= 0 else _CHUNK)


def _drain(running: Command, said: bytearray) -> None:
    with contextlib.suppress(OSError, ValueError):
        while part := running.stderr.read(_CHUNK):
            said += part
            del said[:-_TAIL_BYTES]


def unpack(stream: io.RawIOBase | BinaryIO, target: Path, name: str) -> None:
    """Lays a tar stream down, its top `name` as `target`. Nothing is ever written outside.

    Raises `SpecError` for an entry that would be: by its name, by a symlink that leads out, or
    through any symlink. Device files, and the bits that give a program another's rights, are not
    taken over.
    """
    modes: list[tuple[Path, int]] = []
    with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8") as tar:
        for info in tar:
            parts = _inside(info.name, name)
            path = target.joinpath(*parts)
            _refuse_links(target, parts)
            if info.isdir():
                if parts and path.is_symlink():
                    raise _refused(info.name, f"{path} is a symlink here")
                path.mkdir(exist_ok=True)
                modes.append((path, info.mode & 0o777 or 0o700))
                path.chmod(0o700)
            elif info.isreg():
                _write(tar, info, path)
            elif info.issym():
                _refuse_way_out(info, parts)
                path.unlink(missing_ok=True)
                path.symlink_to(info.linkname)
            elif info.islnk():
                first = _inside(info.linkname, name)
                _refuse_links(target, first)
                path.unlink(missing_ok=True)
                path.hardlink_to(target.joinpath(*first))
            else:
                raise _refused(info.name, "it is neither a file, a folder nor a link")
    for path, mode in reversed(modes):
        path.chmod(mode)


def _inside(entry: str, name: str) -> list[str]:
    parts = [part for part in entry.split("/") if part not in {"", "."}]
    if entry.startswith("/") or ".." in parts:
        raise _refused(entry, "its name leads out of the folder that was asked for")
    if name == ".":
        return parts
    if not parts or parts[0] != name:
        raise _refused(entry, f"it is not in {name}")
    return parts[1:]


def _refuse_links(target: Path, parts: list[str]) -> None:
    """No entry goes through a symlink, whoever made it. The last part, if one, is replaced."""
    at = target
    for part in parts[:-1]:
        at /= part
        if at.is_symlink():
            raise _refused("/".join(parts), f"{at} is a symlink, and nothing is written through it")


def _refuse_way_out(info: tarfile.TarInfo, parts: list[str]) -> None:
    joined = posixpath.normpath(
        posixpath.join(*parts[:-1], info.linkname) if parts else info.linkname
    )
    if info.linkname.startswith("/") or joined == ".." or joined.startswith("../"):
        raise _refused(info.name, f"it is a symlink to {info.linkname}, outside of what is copied;"
                       " copy that by its own path")  # fmt: skip


def _write(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path) -> None:
    source = tar.extractfile(info)
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    try:
        with part.open("xb") as file:
            while source is not None and (data := source.read(_CHUNK)):
                file.write(data)
        part.chmod(info.mode & 0o777)
        os.utime(part, (info.mtime, info.mtime))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _refused(entry: str, why: str) -> SpecError:
    return SpecError([Problem(path="cp", message=f"{entry!r} is refused: {why}")])
