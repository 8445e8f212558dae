"""An HTTP/1.1 answer from its bytes, without waiting for any."""

import io
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage, parse_headers

__all__ = ["Answer"]

_HEAD = 1 << 16


class Answer:
    """An HTTP/1.1 answer, put together from its bytes however they are cut."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: HTTPMessage | None = None
        self.over = False
        self._rest: bytes = b""
        self._left: int = 0  # bytes of the body, or of the chunk and the line end after it
        self._take: Callable[[bytes], bytes] = self._head

    def feed(self, data: bytes) -> bytes:
        """The bytes of the body that are in `data`. Raises `ValueError` for what is no HTTP."""
        return self._take(data)

    def end(self) -> bool:
        """Whether the connection may end here."""
        if self._take == self._until_closed:
            self.over = True
        return self.over

    def _head(self, data: bytes) -> bytes:
        data = self._rest + data
        at = data.find(b"\r\n\r\n")
        if at < 0:
            self._rest = data
            if len(data) > _HEAD:
                raise ValueError("its head does not end")
            return b""
        line, _, fields = data[: at + 4].partition(b"\r\n")
        words = line.split(None, 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise ValueError(f"it begins with {line[:60]!r}")
        self._rest = b""
        if words[1].startswith(b"1"):  # 100 Continue and its like: the answer comes after it
            return self._head(data[at + 4 :]) if data[at + 4 :] else b""
        try:
            self.headers = parse_headers(io.BytesIO(fields))
        except HTTPException as exc:
            raise ValueError(str(exc)) from exc
        self.status = int(words[1])
        self._take = self._body()
        return self._take(data[at + 4 :])

    def _body(self) -> Callable[[bytes], bytes]:
        headers = self.headers or HTTPMessage()
        if "chunked" in str(headers.get("Transfer-Encoding") or "").lower():
            return self._chunked
        length = str(headers.get("Content-Length") or "")
        if not length.isdigit():
            return self._until_closed
        self._left = int(length)
        return self._counted

    def _until_closed(self, data: bytes) -> bytes:
        return data

    def _counted(self, data: bytes) -> bytes:
        data = data[: self._left]
        self._left -= len(data)
        self.over = not self._left
        return data

    def _chunked(self, data: bytes) -> bytes:
        if self.over:
            return b""
        if self._rest:
            data, self._rest = self._rest + data, b""
        found: list[bytes] = []
        at = self._begun(data, found)
        if at < len(data):
            at += self._many_chunks(data[at:] if at else data, found)
        size, find, add = len(data), data.find, found.append
        while at < size:
            end = find(b"\r\n", at)
            if end < 0:
                if size - at > _HEAD:
                    raise ValueError("a chunk has no length")
                break
            try:
                length = int(data[at:end], 16)
            except ValueError:
                length = int(data[at:end].partition(b";")[0], 16)
            if not length:
                self.over = True
                break
            end += 2
            at = end + length + 2
            if at > size:  # a part of it
                self._left = at - size
                add(data[end : end + length])
                at = size
                break
            add(data[end : end + length])
        self._rest = data[at:]
        return b"".join(found)

    @staticmethod
    def _many_chunks(data: bytes, found: list[bytes]) -> int:
        """Takes the whole chunks at the beginning, where no line end is in them: the usual case."""
        parts = data.split(b"\r\n")
        after = (len(parts) - 1) // 2 * 2
        sizes, contents = parts[:after:2], parts[1:after:2]
        try:
            lengths = {size: int(size, 16) for size in set(sizes)}
        except ValueError:
            return 0
        wanted = list(map(lengths.__getitem__, sizes))
        if 0 in lengths.values() or wanted != list(map(len, contents)):
            return 0
        found += contents
        rest = parts[after:]
        return len(data) - sum(map(len, rest)) - 2 * (len(rest) - 1)

    def _begun(self, data: bytes, found: list[bytes]) -> int:
        """Takes what `data` has of the chunk that began before; gives where the next begins."""
        if not self._left:
            return 0
        content = self._left - 2
        if content > 0:
            found.append(data[:content])
        taken = min(self._left, len(data))
        self._left -= taken
        return taken
