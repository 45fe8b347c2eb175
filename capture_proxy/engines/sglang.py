"""The client of SGLang's native interface, which our CPU engine speaks too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from io import BytesIO
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
import structlog

from capture_proxy.engines.base import EngineChunk, EngineInfo, GenerateRequest
from capture_proxy.engines.sglang_wire import StreamReader, error_of, request_body
from capture_proxy.reply import ProxyError

_log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 5.0
CALL_CONNECT_TIMEOUT_S = 30.0
"""The clock also runs while the event loop has other work: a burst of a thousand calls at once took 5 s to connect."""
ABORT_TIMEOUT_S = 5.0
DRAIN_TIMEOUT_S = 0.5  # the body's end follows its last event at once
KEEP_ALIVE_S = 60.0
_JSON = {"content-type": "application/json"}


class SglangEngine:
    """An `Engine` over HTTP. Connections are pooled; the pool opens with the first call and belongs to that event loop."""

    kind = "sglang"

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    def generate(self, request: GenerateRequest) -> SglangStream:
        """Starts a generation; see `Engine.generate`."""
        return SglangStream(self, request)

    async def probe(self, timeout_s: float = CONNECT_TIMEOUT_S) -> EngineInfo:
        """Asks the engine what it is."""
        info = await self._get("/model_info", timeout_s)
        models = await self._get("/v1/models", timeout_s)
        entries = models.get("data") or [{}]
        length = entries[0].get("max_model_len")
        return EngineInfo(
            kind=self.kind,
            url=self.url,
            model=str(info.get("served_model_name") or entries[0].get("id") or info.get("model_path") or ""),
            weight_version=str(info.get("weight_version", "default")),
            context_length=int(length) if length else None,
            logprobs_mode="temperature",  # of the whole distribution after temperature, before top_p and top_k cut it
            gaps=() if info.get("is_generation", True) else ("the model does not generate",),
        )

    async def tokenize(self, text: str, timeout_s: float = CONNECT_TIMEOUT_S) -> list[int]:
        """The engine's own ids of a text without special tokens added, to compare tokenizers by."""
        body = orjson.dumps({"prompt": text, "add_special_tokens": False})
        answer = await self._request("POST", "/v1/tokenize", timeout_s, data=body, headers=_JSON)
        return list(answer.get("tokens") or [])

    async def abort(self, rid: str) -> None:
        """Asks the engine to stop a request; never raises."""
        if not rid:  # an empty id would match every request
            return
        try:
            await self._request(
                "POST", "/abort_request", ABORT_TIMEOUT_S, data=orjson.dumps({"rid": rid}), headers=_JSON
            )
        except ProxyError as error:
            _log.warning("engine.abort_failed", engine=self.url, rid=rid, reason=error.message)

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

    async def _get(self, path: str, timeout_s: float) -> dict[str, Any]:
        return await self._request("GET", path, timeout_s)

    async def _request(self, method: str, path: str, timeout_s: float, **options: Any) -> dict[str, Any]:
        """One small exchange; an answer that isn't a JSON object counts as empty. Raises ProxyError."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, CONNECT_TIMEOUT_S))
        try:
            async with self.session().request(method, self.url + path, timeout=timeout, **options) as response:
                body = await response.read()
                if response.status >= 400:
                    raise error_of(_json_or_text(body), response.status, response.headers.get("retry-after"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(self.url, error) from error
        value = _json_or_text(body)
        return value if isinstance(value, dict) else {}


class SglangStream:
    """One generation: a context manager that is its own stream."""

    def __init__(self, engine: SglangEngine, request: GenerateRequest) -> None:
        self._engine = engine
        self._request = request
        self._response: aiohttp.ClientResponse | None = None
        self._reader = StreamReader()
        self._chunks: Iterator[EngineChunk] = iter(())
        self._is_over = False
        self.status = 0

    async def __aenter__(self) -> Self:
        request = self._request
        timeout = aiohttp.ClientTimeout(total=request.timeout_s, sock_connect=CALL_CONNECT_TIMEOUT_S)
        headers = {**_JSON, "x-smg-routing-key": request.session_id}
        url = f"{self._engine.url}/generate"
        try:
            self._response = await self._engine.session().post(
                url, data=BytesIO(request_body(request)), headers=headers, timeout=timeout
            )
            self.status = self._response.status
            if self.status != 200:
                self._is_over = True
                body = _json_or_text(await self._response.read())
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
            if not (data := await self._read()):
                self._is_over = True
                raise ProxyError("engine_error", "the engine's stream ended without a finish reason")
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
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _json_or_text(body: bytes) -> Any:
    with contextlib.suppress(orjson.JSONDecodeError):
        return orjson.loads(body)
    return body.decode(errors="replace")
