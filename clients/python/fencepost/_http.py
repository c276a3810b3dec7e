"""One request over HTTP/1.1 with asyncio, on a connection of its own, and the clock of leases."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from typing import Any, AsyncIterator, Optional
from urllib.parse import urlsplit

CONNECT = 2.0


def clocks() -> tuple[float, ...]:
    """Reads the clock that also runs while the machine is suspended. Where there is none, the monotonic and the wall clock."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return (time.clock_gettime(time.CLOCK_BOOTTIME),)
    return (time.monotonic(), time.time())


def since(then: tuple[float, ...]) -> float:
    """Returns how much time has passed: with two clocks the longer one counts, because a lease must not be believed too long."""
    return max(now - before for now, before in zip(clocks(), then))


class Response:
    """The head of a response, and the connection with its body."""

    def __init__(self, status: int, headers: dict[str, str], reader: asyncio.StreamReader) -> None:
        self.status, self.headers, self._reader = status, headers, reader

    async def parts(self) -> AsyncIterator[bytes]:
        """Yields the body as it comes. A body that is cut off is an error."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self._line()).split(b";")[0], 16):
                yield await self._reader.readexactly(size)
                await self._line()
        elif "content-length" in self.headers:
            yield await self._reader.readexactly(int(self.headers["content-length"]))
        elif self.status != 204:
            while data := await self._reader.read(65536):
                yield data

    async def json(self) -> Any:
        body = b"".join([part async for part in self.parts()])
        try:
            return json.loads(body or b"null")
        except ValueError:
            return None  # a proxy has answered

    async def events(self, silence: float) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Yields the name and the data of each server-sent event. Silence for longer than that is an error."""
        parts, text = self.parts().__aiter__(), b""
        while True:
            try:
                text += await asyncio.wait_for(parts.__anext__(), silence)
            except StopAsyncIteration:
                return
            while b"\n\n" in text:
                event, text = text.split(b"\n\n", 1)
                fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line)
                # A proxy may send comments (`: ping`) to keep the connection open.
                if b"event" in fields and b"data" in fields:
                    yield fields[b"event"].decode(), json.loads(fields[b"data"])

    async def _line(self) -> bytes:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise asyncio.IncompleteReadError(line, None)
        return line.strip()


@contextlib.asynccontextmanager
async def request(
    url: str, path: str, body: Optional[dict[str, Any]], headers: dict[str, str], context: Optional[ssl.SSLContext]
) -> AsyncIterator[Response]:
    """Sends a request, and gives the response while the connection is open. Without a body it is a GET."""
    base = urlsplit(url)
    secure = base.scheme == "https"
    port = base.port or (443 if secure else 80)
    opened = asyncio.open_connection(base.hostname, port, ssl=context if secure else None)
    reader, writer = await asyncio.wait_for(opened, CONNECT)
    try:
        fields = body and {field: value for field, value in body.items() if value is not None}
        data = b"" if body is None else json.dumps(fields).encode()
        method = "GET" if body is None else "POST"
        headers = {
            "Host": base.netloc, "Content-Type": "application/json", "Content-Length": str(len(data)), "Connection": "close", **headers,
        }
        lines = [f"{method} {base.path.rstrip('/')}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await writer.drain()
        response = Response(0, {}, reader)
        # The first line is `HTTP/1.1 200 OK`.
        response.status = int((await response._line()).split()[1])
        while line := await response._line():
            name, _, value = line.decode("latin-1").partition(":")
            response.headers[name.lower()] = value.strip()
        yield response
    finally:
        writer.close()
