"""Text of any origin as lines: decoded, cut to a bounded length, never held as a whole."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final, TypeAlias, cast

from gpufabric.net._lines import MAX_LINE

Source: TypeAlias = "str | bytes | Path | IO[str] | IO[bytes] | Iterable[str] | Iterable[bytes]"

_CHUNK: Final = 1 << 18
_BATCH: Final = 1_024
_PROBE: Final = 4_096
_BINARY_SHARE: Final = 0.30
_MAGIC: Final = (
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ\x00", "xz data"),
    (b"\x28\xb5\x2f\xfd", "zstandard data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
)
_BOMS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class Text:
    """Yields batches of lines; afterwards says what was odd about the source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.notes: list[str] = []
        self.cut_lines = 0
        self.ends_open = False
        """The last line has no line feed: it may be the front part of a longer one."""

    def batches(self) -> Iterator[list[str]]:
        """The lines in order, a batch at a time, each without its line feed.

        A stream gives what it has at once, so that a running job can be followed.
        """
        source = self._source
        if isinstance(source, str):
            yield from self._split(_pieces(source))
        elif isinstance(source, (bytes, bytearray, memoryview)):
            yield from self._split(self._decoded(_byte_pieces(bytes(source))))
        elif isinstance(source, Path):
            with source.open("rb") as stream:
                yield from self._split(self._decoded(_chunks(stream)))
        elif hasattr(source, "read"):
            yield from self._stream(cast("IO[str] | IO[bytes]", source))
        else:
            yield from self._given(source)
        if self.cut_lines:
            self.notes.append(f"{self.cut_lines} lines longer than {MAX_LINE} characters were cut")

    def _stream(self, stream: IO[str] | IO[bytes]) -> Iterator[list[str]]:
        first = stream.read(0)
        if isinstance(first, str):
            text = cast("IO[str]", stream)
            buffer = _untouched(text)
            if buffer is not None:
                # The file's own bytes: no decoder in between can fail.
                yield from self._split(self._decoded(_chunks(buffer)))
            else:
                yield from self._split(self._texts(text))
        else:
            yield from self._split(self._decoded(_chunks(cast("IO[bytes]", stream))))

    def _texts(self, stream: IO[str]) -> Iterator[str]:
        try:
            while piece := stream.read(_CHUNK):
                yield piece
        except UnicodeDecodeError as error:
            self.notes.append(
                f"the stream's decoder failed ({error.reason}); open it in binary mode to read on"
            )

    def _given(self, lines: Iterable[str] | Iterable[bytes]) -> Iterator[list[str]]:
        """Each item of an iterable is a line, whether it ends in a line feed or not."""
        batch: list[str] = []
        for item in lines:
            text = item.decode("utf-8", "replace") if isinstance(item, (bytes, bytearray)) else item
            if len(text) > MAX_LINE:
                self.cut_lines += 1
                text = text[:MAX_LINE]
            batch += text.rstrip("\r\n").split("\n")
            if len(batch) >= _BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    def _split(self, pieces: Iterable[str]) -> Iterator[list[str]]:
        tail = ""
        skipping = False
        for piece in pieces:
            # Only line feeds end lines: str.splitlines() would also split at form feeds and others.
            lines = piece.split("\n")
            if skipping:
                if len(lines) == 1:
                    continue
                lines[0] = ""
                skipping = False
            lines[0] = tail + lines[0]
            tail = lines.pop()
            if len(tail) > MAX_LINE:
                tail, skipping = tail[:MAX_LINE], True
                self.cut_lines += 1
            if lines:
                yield lines
        if tail:
            self.ends_open = not skipping
            yield [tail]

    def _decoded(self, chunks: Iterator[bytes]) -> Iterator[str]:
        head = next(chunks, b"")
        magic = next((what for mark, what in _MAGIC if head.startswith(mark)), None)
        if magic is not None:
            self.notes.append(f"this is {magic}: unpack it and read the text inside")
            return
        encoding = _encoding(head)
        if encoding is None:
            self.notes.append("this is binary data, not text")
            return
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        while head:
            yield decoder.decode(head)
            head = next(chunks, b"")
        rest = decoder.decode(b"", final=True)
        if rest:
            yield rest


def _encoding(head: bytes) -> str | None:
    """The encoding the first bytes show; None where they are no text."""
    for bom, name in _BOMS:
        if head.startswith(bom):
            return name
    probe = head[:_PROBE]
    if not probe:
        return "utf-8"
    zeros = probe.count(0)
    if zeros > len(probe) // 4:
        # UTF-16 without its mark has a zero in every other byte of plain text.
        odd, even = probe[1::2].count(0), probe[::2].count(0)
        if odd > len(probe) * 0.4 and even < len(probe) * 0.05:
            return "utf-16-le"
        if even > len(probe) * 0.4 and odd < len(probe) * 0.05:
            return "utf-16-be"
        return None
    control = sum(byte < 32 and byte not in b"\t\n\r\f\b\x1b\x00" for byte in probe)
    broken = probe.decode("utf-8", "replace").count("\ufffd")
    return None if control + broken > len(probe) * _BINARY_SHARE else "utf-8"


def _untouched(stream: IO[str]) -> IO[bytes] | None:
    """The bytes below a text file nothing has been read of; a decoder reads ahead of its user."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    fresh = stream.seekable() and stream.tell() == 0
    return cast("IO[str]", stream).buffer if fresh else None  # type: ignore[attr-defined]


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), _CHUNK):
        yield text[start : start + _CHUNK]


def _byte_pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _CHUNK):
        yield data[start : start + _CHUNK]


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    # read1 gives what is there already, so a pipe is followed while its writer runs.
    read1 = getattr(stream, "read1", None)
    while chunk := (read1(_CHUNK) if read1 else stream.read(_CHUNK)):
        yield chunk
