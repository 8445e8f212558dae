"""A folder as one archive: the same bytes for the same content, without what git would not keep.

`.gitignore` and `.gpufabricignore` of every folder are honoured, nearest last, as git reads them.
Symlinks are kept as symlinks; sockets, FIFOs and devices are left out and told. Times are not
kept: every file is dated `DATE`, the first day that zip archives can hold in any time zone, so that
builds of wheels work in the copy.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from gpufabric._frozen import frozen
from gpufabric.errors import Problem, SpecError

if TYPE_CHECKING:
    import tarfile

    from pathspec import GitIgnoreSpec

__all__ = ["DATE", "IGNORE_FILES", "Packed", "pack"]

_Rules = tuple[tuple[str, "GitIgnoreSpec"], ...]  # folder, what the ignore files in it say

DATE = 315_619_200  # 1980-01-02T00:00:00Z
IGNORE_FILES = (".gitignore", ".gpufabricignore")
_BLOCK = 512
_BIGGEST = 5
_UNREADABLE_SHOWN = 20


@frozen(kw_only=True)
class Packed:
    """What was packed: the content's hash, sizes, and what was left out in words."""

    sha256: str
    size_bytes: int
    files: int
    ignored: int
    skipped: tuple[str, ...] = ()


@frozen(kw_only=True)
class _Entry:
    path: str
    source: str
    mode: int
    size: int
    link: str | None = None


class _Hashing:
    """Passes bytes on and hashes them."""

    def __init__(self, out: IO[bytes]) -> None:
        self.out = out
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        self.size += len(data)
        return self.out.write(data)


def pack(
    folder: str | os.PathLike[str],
    out: IO[bytes],
    *,
    limit_bytes: float,
    leave_out: Path | None = None,
) -> Packed:
    """Writes `folder` to `out` as a tar archive, without the folder `leave_out` if it is in there.

    Raises `SpecError`: no such folder, a file that cannot be read (each is named), or more than
    `limit_bytes` (the biggest paths are named).
    """
    import tarfile

    root = os.fspath(folder)
    if not os.path.isdir(root):  # noqa: PTH112  # text paths: bytes that are not UTF-8 survive
        what = "is not a folder" if os.path.lexists(root) else "does not exist"
        raise SpecError([Problem(path="workdir", message=f"{root} {what}")])
    scan = _Scan(root, leave_out)
    entries = sorted(scan.entries(), key=lambda entry: os.fsencode(entry.path))
    _refuse_unreadable(sorted(scan.unreadable))
    _refuse_large(entries, limit_bytes)
    sink = _Hashing(out)
    stream = cast("IO[bytes]", sink)  # a tar stream only writes
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            _add(tar, entry)
    return Packed(
        sha256=sink.hash.hexdigest(),
        size_bytes=sink.size,
        files=sum(1 for entry in entries if not stat.S_ISDIR(entry.mode)),
        ignored=scan.ignored,
        skipped=tuple(sorted(scan.skipped)),
    )


def _refuse_unreadable(unreadable: list[str]) -> None:
    if unreadable:
        shown = [Problem(path="workdir", message=text) for text in unreadable[:_UNREADABLE_SHOWN]]
        if len(unreadable) > _UNREADABLE_SHOWN:
            more = len(unreadable) - _UNREADABLE_SHOWN
            shown.append(Problem(path="workdir", message=f"and {more} more that cannot be read"))
        raise SpecError(shown)


def _cost(entry: _Entry) -> int:
    return _BLOCK + (entry.size + _BLOCK - 1) // _BLOCK * _BLOCK


def _refuse_large(entries: list[_Entry], limit_bytes: float) -> None:
    total = sum(map(_cost, entries))
    if total <= limit_bytes:
        return
    tops: dict[str, int] = {}
    for entry in entries:
        top = entry.path.split("/", 1)[0] + ("/" if "/" in entry.path else "")
        tops[top] = tops.get(top, 0) + entry.size
    files = {entry.path: entry.size for entry in entries if stat.S_ISREG(entry.mode)}
    biggest = sorted({**tops, **files}.items(), key=lambda item: (-item[1], item[0]))[:_BIGGEST]
    names = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in biggest)
    raise SpecError(
        [
            Problem(
                path="workdir",
                message=f"{total / 1e6:.1f} MB, more than the limit of {limit_bytes / 1e6:g} MB;"
                f" the biggest: {names}; leave them out by .gpufabricignore, or raise the"
                " setting workdir_limit_mb",
            )
        ]
    )


def _add(tar: "tarfile.TarFile", entry: _Entry) -> None:
    import tarfile

    member = tarfile.TarInfo(entry.path)
    member.mtime = DATE
    member.mode = 0o755 if stat.S_ISDIR(entry.mode) or entry.mode & stat.S_IXUSR else 0o644
    if entry.link is not None:
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, entry.link, 0o777
        tar.addfile(member)
    elif stat.S_ISDIR(entry.mode):
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    else:
        member.size = entry.size
        try:
            with Path(entry.source).open("rb") as file:
                tar.addfile(member, file)
        except OSError as exc:
            changed = "it changed while it was packed"
            raise SpecError(
                [Problem(path="workdir", message=f"{entry.path}: {exc.strerror or changed}")]
            ) from exc


class _Scan:
    """Walks a folder and decides what goes along."""

    def __init__(self, root: str, leave_out: Path | None) -> None:
        self.root = root
        self.leave_out = leave_out.stat() if leave_out is not None else None
        self.skipped: list[str] = []
        self.unreadable: list[str] = []
        self.ignored = 0

    def entries(self) -> Iterator[_Entry]:
        yield from self._folder("", ())

    def _folder(self, path: str, rules: "_Rules") -> Iterator[_Entry]:
        source = os.path.join(self.root, path) if path else self.root  # noqa: PTH118  # see pack
        try:
            with os.scandir(source) as found:
                children = list(found)
        except OSError as exc:
            self.unreadable.append(f"{path or self.root}: {exc.strerror}")
            return
        rules = (*rules, *self._rules(path, {child.name for child in children}))
        for child in children:
            name = f"{path}/{child.name}" if path else child.name
            if name == ".git" or self._ignored(name, rules, folder=_is_folder(child)):
                self.ignored += 1
                continue
            yield from self._entry(child, name, rules)

    def _entry(self, child: "os.DirEntry[str]", name: str, rules: "_Rules") -> Iterator[_Entry]:
        try:
            found = child.stat(follow_symlinks=False)
            mode = found.st_mode
            if stat.S_ISLNK(mode):
                link = os.readlink(child.path)  # noqa: PTH115  # see pack
                yield _Entry(path=name, source=child.path, mode=mode, size=0, link=link)
            elif self.leave_out is not None and os.path.samestat(found, self.leave_out):
                self.skipped.append(f"{name}: the folder of jobs, left out")
            elif stat.S_ISDIR(mode):
                yield _Entry(path=name, source=child.path, mode=mode, size=0)
                yield from self._folder(name, rules)
            elif stat.S_ISREG(mode):
                if not os.access(child.path, os.R_OK):
                    self.unreadable.append(f"{name}: Permission denied")
                yield _Entry(path=name, source=child.path, mode=mode, size=found.st_size)
            else:
                self.skipped.append(f"{name}: {_kind(mode)}, left out")
        except OSError as exc:
            self.unreadable.append(f"{name}: {exc.strerror}")

    def _rules(self, path: str, names: set[str]) -> Iterator[tuple[str, "GitIgnoreSpec"]]:
        from pathspec import GitIgnoreSpec

        for name in IGNORE_FILES:
            if name in names:
                where = f"{path}/{name}" if path else name
                try:
                    text = (Path(self.root) / where).read_text("utf-8", "surrogateescape")
                except OSError as exc:
                    self.unreadable.append(f"{where}: {exc.strerror}")
                    continue
                yield path, GitIgnoreSpec.from_lines(text.splitlines())

    @staticmethod
    def _ignored(name: str, rules: "_Rules", *, folder: bool) -> bool:
        for base, spec in reversed(rules):  # the nearest file decides, as in git
            below = name[len(base) + 1 :] if base else name
            verdict = spec.check_file(below + "/" if folder else below).include
            if verdict is not None:
                return verdict
        return False


def _is_folder(child: "os.DirEntry[str]") -> bool:
    try:
        return child.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _kind(mode: int) -> str:
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a device"
