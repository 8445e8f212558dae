"""What a task brings along, packed once and named by its content."""

import gzip
import hashlib
import io
import logging
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Self, cast

from gpufabric._frozen import frozen
from gpufabric._workdir import DATE, pack
from gpufabric.task import PythonCall, Task

__all__ = ["CODE_LIMIT", "Code", "Part", "code_keys", "packed"]

CODE_LIMIT = 900_000
"""Bytes of packed code that one Secret holds beside its names; the API server takes 1 MiB."""

_log = logging.getLogger(__name__)
_CHUNK = 1 << 16


def code_keys(task: Task) -> Iterator[str]:
    """The names of the parts that a task brings along, as they are laid down on every node."""
    if task.workdir is not None:
        yield "workdir.tar.gz"
    if task.files:
        yield "files.tar.gz"
    if isinstance(task.run, PythonCall):
        yield "function.pickle"


@frozen(kw_only=True)
class Part:
    """One part: its size as it travels, and the hash of what it holds.

    The hash of a `.gz` is that of its content, so that two machines whose zlib differs agree.
    """

    key: str
    size: int
    sha256: str


class Code:
    """The packed parts of one launch; on disk where they are large. Closing removes them."""

    def __init__(self) -> None:
        """Nothing is packed yet."""
        self._files: dict[str, IO[bytes]] = {}
        self.parts: tuple[Part, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def add(self, key: str, file: IO[bytes], sha256: str) -> None:
        """Adds a part; the file is closed with the rest."""
        self._files[key] = file
        size = file.seek(0, io.SEEK_END)
        self.parts = (*self.parts, Part(key=key, size=size, sha256=sha256))

    @property
    def size(self) -> int:
        """Bytes that travel."""
        return sum(part.size for part in self.parts)

    @property
    def manifest(self) -> str:
        """A line a part, `HASH  NAME`: what every node holds the parts against."""
        return "".join(f"{part.sha256}  {part.key}\n" for part in self.parts)

    @property
    def name(self) -> str:
        """The name of the objects that hold it: of equal code the same."""
        return f"gpufabric-code-{hashlib.sha256(self.manifest.encode()).hexdigest()[:20]}"

    def read(self, key: str) -> bytes:
        """A whole part."""
        file = self._files[key]
        file.seek(0)
        return file.read()

    def chunks(self, key: str) -> Iterator[bytes]:
        """A part, piece by piece."""
        file = self._files[key]
        file.seek(0)
        while chunk := file.read(_CHUNK):
            yield chunk


def packed(task: Task, *, limit_bytes: float) -> Code:
    """Packs what a task brings along. Raises `SpecError` where that cannot be."""
    code = Code()
    try:
        if task.workdir is not None:
            code.add("workdir.tar.gz", *_folder(task.workdir, limit_bytes))
        if task.files:
            code.add("files.tar.gz", *_texts(task.files))
        if isinstance(task.run, PythonCall):
            payload = task.run.payload
            code.add("function.pickle", io.BytesIO(payload), hashlib.sha256(payload).hexdigest())
    except BaseException:
        code.__exit__(None, None, None)
        raise
    return code


def _folder(workdir: str, limit_bytes: float) -> tuple[IO[bytes], str]:
    out = tempfile.SpooledTemporaryFile(max_size=2 * CODE_LIMIT)  # noqa: SIM115  # Code closes it
    try:
        with gzip.GzipFile(filename="", mode="wb", fileobj=out, mtime=0) as zipped:
            stream = cast("IO[bytes]", zipped)  # a tar stream only writes
            found = pack(Path(workdir).expanduser(), stream, limit_bytes=limit_bytes)
    except BaseException:
        out.close()
        raise
    for words in found.skipped:
        _log.warning("workdir: %s", words)
    return cast("IO[bytes]", out), found.sha256


def _texts(files: Mapping[str, str]) -> tuple[IO[bytes], str]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            data = text.encode()
            entry.size, entry.mtime, entry.mode = len(data), DATE, 0o644
            tar.addfile(entry, io.BytesIO(data))
    plain = out.getvalue()
    return io.BytesIO(gzip.compress(plain, mtime=0)), hashlib.sha256(plain).hexdigest()
