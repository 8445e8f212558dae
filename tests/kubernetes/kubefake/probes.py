"""Readiness probes."""

import asyncio
import contextlib

from .containers import Container
from .errors import Json


async def probed(probe: Json, one: Container, address: str) -> bool:
    """Whether the probe succeeds."""
    try:
        async with asyncio.timeout(float(probe.get("timeoutSeconds") or 1)):
            if "exec" in probe:
                return await _exec(probe["exec"]["command"], one)
            if "tcpSocket" in probe:
                return await _tcp(address, int(probe["tcpSocket"]["port"])) is not None
            if "httpGet" in probe:
                return await _http(address, probe["httpGet"])
    except (TimeoutError, OSError):
        return False
    return True


async def _exec(command: list[str], one: Container) -> bool:
    assert one.setting is not None
    process = await one.spawn([one.setting[2].here(word) for word in command])
    await process.communicate()
    return process.returncode == 0


async def _tcp(address: str, port: int) -> asyncio.StreamWriter | None:
    for host in (address, "127.0.0.1"):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
            return writer
    return None


async def _http(address: str, probe: Json) -> bool:
    reader, writer = await asyncio.open_connection(address, int(probe["port"]))
    try:
        path = probe.get("path") or "/"
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode()
        )
        first = await reader.readline()
        return 200 <= int(first.split(b" ")[1]) < 400
    finally:
        writer.close()
