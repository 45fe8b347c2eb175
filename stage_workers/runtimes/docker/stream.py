"""The streams of a program that runs by `exec`: one connection to the engine, output in frames, input until it is closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import orjson

from stage_workers.runtimes.base import OnOutput, RuntimeFault

_CONNECT_S = 20.0
_READ_BYTES = 65_536
_LIMIT_BYTES = 256 * 1024
# A frame: which stream (1 or 2), three zero bytes, the length as a big-endian number.
_HEADER_BYTES = 8


@dataclass(slots=True)
class Streams:
    """A connection that an exec's start is asked for on, and that its streams then take over."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(cls, host: str) -> Streams:
        """Connects to an engine at `unix://…` or `tcp://…`. Raises OSError, TimeoutError."""
        parts = urlsplit(host)
        async with asyncio.timeout(_CONNECT_S):
            if parts.scheme == "unix":
                return cls(*await asyncio.open_unix_connection(parts.path, limit=_LIMIT_BYTES))
            port = parts.port or 2375
            return cls(*await asyncio.open_connection(parts.hostname or "127.0.0.1", port, limit=_LIMIT_BYTES))

    async def start(self, exec_id: str) -> None:
        """Starts the exec; from here on its output comes. Raises RuntimeFault when the engine refuses."""
        body = b'{"Detach":false,"Tty":false}'
        self.writer.write(
            f"POST /exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
            f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self.writer.drain()
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            raise RuntimeFault(f"the Docker engine didn't start the program: {error!r}") from error
        status = head.split(" ", 2)[1]
        if status not in {"101", "200"}:
            rest = b""
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(2):
                    rest = await self.reader.read(_READ_BYTES)
            raise RuntimeFault(f"the Docker engine refused to start the program ({status}): {_message(rest)}")

    async def feed(self, data: bytes) -> None:
        """Writes the program's whole input and closes it. A program may end without reading it: that is its business."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()
            if self.writer.can_write_eof():
                self.writer.write_eof()

    async def read(self, take: OnOutput) -> None:
        """Hands the output on until its end."""
        frames = Frames(take)
        with contextlib.suppress(ConnectionError):
            while data := await self.reader.read(_READ_BYTES):
                frames.feed(data)

    async def close(self) -> None:
        """Closes the connection; input that was never read must not keep it open."""
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class Frames:
    """Takes the frames of an engine's stream apart."""

    def __init__(self, take: Callable[..., None]) -> None:
        self._take = take
        self._header = bytearray()
        self._left = 0

    def feed(self, data: bytes) -> None:
        """The next piece of the stream, wherever it was cut."""
        view = memoryview(data)
        while view:
            if self._left:
                piece, view = view[: self._left], view[self._left :]
                self._left -= len(piece)
                self._take("stderr" if self._header[0] == 2 else "stdout", bytes(piece))
                if not self._left:
                    self._header.clear()
                continue
            missing = _HEADER_BYTES - len(self._header)
            self._header += view[:missing]
            view = view[missing:]
            if len(self._header) == _HEADER_BYTES:
                self._left = int.from_bytes(self._header[4:], "big")
                if not self._left:
                    self._header.clear()


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body.decode("utf-8", "replace").strip() or "no reason given"
