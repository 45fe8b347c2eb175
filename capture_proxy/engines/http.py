"""What the clients of all engines share: one pool of connections, small exchanges, and streams that clean up after themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from io import BytesIO
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol, Self

import aiohttp
import orjson
import structlog

from capture_proxy.engines.base import EngineChunk, GenerateRequest
from capture_proxy.engines.errors import error_of
from capture_proxy.reply import ProxyError

_log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S: Final = 5.0
CALL_CONNECT_TIMEOUT_S: Final = 30.0
"""The clock also runs while the event loop has other work: a burst of a thousand calls at once took 5 s to connect."""
ABORT_TIMEOUT_S: Final = 5.0
DRAIN_TIMEOUT_S: Final = 0.5  # the body's end follows its last event at once
KEEP_ALIVE_S: Final = 60.0
JSON_HEADERS: Final = {"content-type": "application/json"}


class ReplyReader(Protocol):
    """Turns the bytes of a reply's body into chunks. `is_done` once the body said that it is over."""

    is_done: bool

    def feed(self, data: bytes) -> Iterator[EngineChunk]:
        """The chunks that `data` completes. Raises ProxyError."""
        ...

    def end(self) -> Iterator[EngineChunk]:
        """What is left at the end of the body. Raises ProxyError when the reply isn't whole."""
        ...


class HttpEngine:
    """Base of the clients. Connections are pooled; the pool opens with the first call and belongs to that event loop."""

    kind: ClassVar[str] = ""
    is_text_in: ClassVar[bool] = False

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    def untold(self, sampling: Mapping[str, Any]) -> list[str]:
        """Sampling parameters that its interface has no word for: none."""
        del sampling
        return []

    async def abort(self, rid: str) -> None:
        """Asks the engine to stop a request; never raises. Here: the closed connection says it."""

    async def close(self) -> None:
        """Waits for aborts under way, then gives the connections back."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=ABORT_TIMEOUT_S)
        if self._session is not None:
            await self._session.close()
            self._session = None

    def session(self) -> aiohttp.ClientSession:
        """The pool."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, auto_decompress=False, trust_env=False
            )
        return self._session

    def abort_later(self, rid: str) -> None:
        """Sends an abort without making the caller wait: it is usually being cancelled itself."""
        task = asyncio.create_task(self.abort(rid), name=f"abort-{rid}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def get(self, path: str, timeout_s: float) -> dict[str, Any]:
        """One small exchange; an answer that isn't a JSON object counts as empty. Raises ProxyError."""
        return await self._exchange("GET", path, timeout_s)

    async def post(self, path: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """One small exchange with a JSON body, like `get`."""
        return await self._exchange("POST", path, timeout_s, data=orjson.dumps(body), headers=JSON_HEADERS)

    async def tell(self, path: str, body: Mapping[str, Any]) -> None:
        """An abort on its way out; what goes wrong is only logged."""
        try:
            await self.post(path, body, ABORT_TIMEOUT_S)
        except ProxyError as error:
            _log.warning("engine.abort_failed", engine=self.url, reason=error.message)

    async def _exchange(self, method: str, path: str, timeout_s: float, **options: Any) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, CONNECT_TIMEOUT_S))
        try:
            async with self.session().request(method, self.url + path, timeout=timeout, **options) as response:
                body = await response.read()
                if response.status >= 400:
                    raise error_of(json_or_text(body), response.status, response.headers.get("retry-after"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(self.url, error) from error
        value = json_or_text(body)
        return value if isinstance(value, dict) else {}


class HttpStream:
    """One generation: a context manager that is its own stream."""

    def __init__(
        self,
        engine: HttpEngine,
        request: GenerateRequest,
        *,
        path: str,
        body: bytes,
        reader: ReplyReader,
        headers: Mapping[str, str],
    ) -> None:
        self._engine = engine
        self._request = request
        self._path = path
        self._body = body
        self._headers = {**JSON_HEADERS, **headers}
        self._response: aiohttp.ClientResponse | None = None
        self._reader = reader
        self._chunks: Iterator[EngineChunk] = iter(())
        self._is_over = False
        self._is_at_end = False
        self.status = 0

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._request.timeout_s, sock_connect=CALL_CONNECT_TIMEOUT_S)
        try:
            self._response = await self._engine.session().post(
                self._engine.url + self._path, data=BytesIO(self._body), headers=self._headers, timeout=timeout
            )
            self.status = self._response.status
            if self.status != 200:
                self._is_over = True
                body = json_or_text(await self._response.read())
                raise error_of(body, self.status, self._response.headers.get("retry-after"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._leave(
                is_sent=isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)
            )
            raise unreachable(self._engine.url, error) from error
        except BaseException:  # also a cancelled call leaves no connection behind
            self._leave(is_sent=not self._is_over)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(is_sent=True)

    def __aiter__(self) -> Self:
        """The chunks up to the one with `finish`. A consumer may pause and go on: nothing is read twice or lost."""
        return self

    async def __anext__(self) -> EngineChunk:
        """The next chunk. Raises ProxyError when the engine fails or falls silent, after the chunks that came before."""
        while True:
            if (chunk := next(self._chunks, None)) is not None:
                self._is_over = self._is_over or chunk.finish is not None
                return chunk
            if self._reader.is_done or self._is_over:
                await self._drain()
                if self._is_over:
                    raise StopAsyncIteration
            if self._is_at_end or not (data := await self._read()):
                if self._is_at_end:
                    self._is_over = True
                    raise ProxyError("engine_error", "the engine's stream ended without a finish reason")
                self._is_at_end = True
                self._chunks = self._reader.end()
            else:
                self._chunks = self._reader.feed(data)

    async def _read(self) -> bytes:
        """What came of the body; empty at its end."""
        assert self._response is not None
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ProxyError("engine_error", f"the engine's stream broke off: {_say(error)}") from error

    async def _drain(self) -> None:
        """Reads on to the end of the body, so that the connection can be used again; an engine that dawdles loses it."""
        with contextlib.suppress(ProxyError, TimeoutError):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while await self._read():
                    pass

    def _leave(self, *, is_sent: bool) -> None:
        """Lets the connection go: back to the pool when the reply was read to its end, else closed, and the request aborted."""
        if self._response is not None:
            if self._is_over and self._response.content.at_eof():
                self._response.release()
            else:
                self._response.close()
        if is_sent and not self._is_over:
            self._is_over = True
            self._engine.abort_later(self._request.rid)


def unreachable(url: str, error: BaseException) -> ProxyError:
    """The error for an engine that can't be reached or doesn't answer in time."""
    return ProxyError("engine_unavailable", f"no answer from the engine at {url}: {_say(error)}")


def _say(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientPayloadError):
        # Its own text names a status that nobody answered with, and clients read texts.
        return "the connection closed before the reply's end"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def json_or_text(body: bytes) -> Any:
    """A body decoded as JSON, or as text where it isn't JSON."""
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(body)
    return body.decode(errors="replace")
