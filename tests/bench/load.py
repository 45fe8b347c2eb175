"""A load generator that costs little: keep-alive HTTP/1.1 on bare asyncio, one prepared request per connection.

It shares the machine with what it measures, so it parses no JSON and no chunks: it notes when the first text arrives, when the
answer ends, and whether it ended well.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import orjson

from tests.bench.errors import BenchError

_TEXT = re.compile(rb'"content": ?"[^"]')
"""The first chunk that carries text, in any server's spelling; the role's chunk carries an empty one."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_END = b"0\r\n\r\n"
_TAIL_BYTES = 4096
"""Enough of the answer's end to hold its last events."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished call: its status, the seconds to its first text and to its end, and whether it ended as it should."""

    status: int
    first_s: float
    total_s: float
    is_good: bool


@dataclass(frozen=True, slots=True)
class Target:
    """Where a call goes and the bytes that it sends."""

    host: str
    port: int
    request: bytes


def chat_call(base_url: str, prompt: str, *, max_tokens: int = 64) -> Target:
    """A streamed Chat Completions call to `<base_url>/chat/completions`."""
    messages = [
        {"role": "system", "content": "You are a careful programmer. Answer in one short sentence."},
        {"role": "user", "content": prompt},
    ]
    body = orjson.dumps({"model": "policy", "messages": messages, "stream": True, "max_tokens": max_tokens})
    url = urlsplit(base_url)
    assert url.hostname is not None
    assert url.port is not None
    head = (
        f"POST {url.path}/chat/completions HTTP/1.1\r\nhost: {url.netloc}\r\ncontent-type: application/json\r\n"
        f"accept: text/event-stream\r\nauthorization: Bearer unused\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return Target(url.hostname, url.port, head.encode() + body)


class Connection(asyncio.Protocol):
    """One keep-alive connection with one call at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[Sample] | None = None
        self._began_s = self._first_s = 0.0
        self._head: bytes | None = None
        self._tail = b""
        self._missing = -1
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._done is not None and not self._done.done():
            self._finish(is_good=False)

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()

    def send(self, request: bytes) -> asyncio.Future[Sample]:
        """Send a call; the future gives its sample and never raises."""
        assert self._transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self._head, self._tail, self._missing, self._first_s = None, b"", -1, 0.0
        self._began_s = time.perf_counter()
        self._transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            return
        body = data
        if self._head is None:
            self._tail += data
            head, found, body = self._tail.partition(b"\r\n\r\n")
            if not found:
                return
            self._head, self._tail = head, b""
            if not _CHUNKED.search(head):
                length = _LENGTH.search(head)
                self._missing = int(length.group(1)) if length else 0
        if not self._first_s and _TEXT.search(body):
            self._first_s = time.perf_counter()
        self._tail = (self._tail + body)[-_TAIL_BYTES:]
        if self._missing >= 0:
            self._missing = max(0, self._missing - len(body))
            if self._missing == 0:
                self._finish(is_good=False)  # a stream is chunked; a whole answer is an error's
        elif self._tail.endswith(_END):
            self._finish(is_good=b"data: [DONE]" in self._tail and b'"finish_reason":"stop"' in self._tail)

    def _finish(self, *, is_good: bool) -> None:
        assert self._done is not None
        now = time.perf_counter()
        status = int(self._head.split(b" ", 2)[1]) if self._head else 0
        first_s = (self._first_s or now) - self._began_s
        self._done.set_result(Sample(status, first_s, now - self._began_s, is_good=is_good and status == 200))

    @property
    def last_words(self) -> str:
        """The end of the last answer, for an error's message."""
        return self._tail[-500:].decode(errors="replace")


async def connect(target: Target, timeout_s: float = 30.0) -> Connection:
    """Open a connection; raises BenchError."""
    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(Connection, target.host, target.port)
    except (OSError, TimeoutError) as error:
        raise BenchError(f"no connection to {target.host}:{target.port}: {error!r}") from error
    return connection


async def closed_loop(targets: Sequence[Target], calls: int, *, within_s: float) -> list[Sample]:
    """One worker per target, each calling again as soon as it was answered, `calls` calls in all.

    Raises BenchError when a call ends badly (its result would mean nothing) or the time is over.
    """
    left = calls
    samples: list[Sample] = []

    async def work(target: Target) -> None:
        nonlocal left
        connection = await connect(target)
        try:
            while left > 0:
                left -= 1
                sample = await connection.send(target.request)
                if not sample.is_good:
                    raise BenchError(f"a call ended badly: {sample}; {connection.last_words}")
                samples.append(sample)
        finally:
            connection.close()

    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            for target in targets:
                group.create_task(work(target))
    except TimeoutError as late:
        raise BenchError(f"only {len(samples)} of {calls} calls were answered within {within_s:.0f} s") from late
    except ExceptionGroup as failed:  # the first failure ended the others
        raise failed.exceptions[0] from None
    return samples
