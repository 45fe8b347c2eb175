"""What the addons know of one HTTP exchange, and the rule that none of them may fail open."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import structlog
from mitmproxy import http

from capture_proxy.call import Call, Prompt
from capture_proxy.dialects import DIALECTS, Dialect, Route
from capture_proxy.leases import CallEnd, Lease
from capture_proxy.recorder import Recorder
from capture_proxy.reply import ChatRequest, ProxyError
from schemas.records import Boundary

log = structlog.get_logger(__name__)

_KEY: Final = "polynya.exchange"
_HIDDEN: Final = "[secret]"
_MAX_PATH: Final = 2000
_OURS: Final = 500  # from here on a status says that the provider failed


class RefusedError(Exception):
    """A request that ends here: the answer's error, and the reason under which its rejection is counted."""

    def __init__(self, error: ProxyError, reason: str, *, session_id: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.reason = reason
        self.session_id = session_id


@dataclass(eq=False, slots=True)
class Exchange:
    """One request on its way through the addons; each fills in what the next ones need."""

    route: Route | None = None
    dialect: Dialect = field(default_factory=lambda: DIALECTS["openai_chat"])
    body: bytes = b""
    lease: Lease | None = None
    request: ChatRequest | None = None
    prompt: Prompt | None = None
    call: Call | None = None
    is_forward: bool = False
    """It came to the forward listener: `secret` and `path` stand in the place of what the request itself says."""
    secret: str = ""
    path: str = ""
    is_refused: bool = False
    arrived_s: float = field(default_factory=time.monotonic)


def exchange_of(flow: http.HTTPFlow) -> Exchange:
    """The exchange of a flow, made on first use."""
    found: Exchange = flow.metadata.setdefault(_KEY, None) or Exchange()
    flow.metadata[_KEY] = found
    return found


def answer(flow: http.HTTPFlow, status: int, headers: dict[str, str], body: bytes) -> None:
    """Answers a request here; it goes nowhere else."""
    flow.response = http.Response.make(status, b"" if flow.request.method == "HEAD" else body, headers)


def answer_error(flow: http.HTTPFlow, exchange: Exchange, error: ProxyError) -> None:
    """Answers with an error in the dialect's shape."""
    status, headers, body = exchange.dialect.encode_error(error)
    answer(flow, status, headers, body)


class RequestStep(ABC):
    """Base of the addons that a request passes: fails closed, and records each refusal.

    mitmproxy logs and swallows what an addon raises, which would let a half-checked request go on; so nothing leaves here.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    @abstractmethod
    async def step(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        """The addon's own work. May raise ProxyError or RefusedError, which answer the request."""

    async def request(self, flow: http.HTTPFlow) -> None:
        """The hook: the whole request is there."""
        if flow.response is not None or flow.error is not None:
            return
        exchange = exchange_of(flow)
        await guarded(self.recorder, flow, exchange, self.step)


async def guarded(
    recorder: Recorder,
    flow: http.HTTPFlow,
    exchange: Exchange,
    work: Callable[[http.HTTPFlow, Exchange], Awaitable[None]],
) -> None:
    """Runs a step; whatever it raises becomes an answer in the dialect's shape, and a rejection."""
    try:
        await work(flow, exchange)
    except asyncio.CancelledError:
        raise
    except RefusedError as refusal:
        refuse(recorder, flow, exchange, refusal)
    except ProxyError as error:
        refuse(recorder, flow, exchange, RefusedError(error, error.kind))
    except Exception:  # the boundary of a step: fail closed, whatever it was
        log.exception("request.step_failed", step=getattr(work, "__qualname__", ""))
        crash = ProxyError("internal", "the proxy failed on this request; its log has the details")
        refuse(recorder, flow, exchange, RefusedError(crash, "internal"))


def refuse(
    recorder: Recorder,
    flow: http.HTTPFlow,
    exchange: Exchange,
    refusal: RefusedError,
    *,
    request_bytes: int | None = None,
) -> None:
    """Answers with the refusal and records it, once per request: with the secret's hash, never the secret."""
    answer_error(flow, exchange, refusal.error)
    if exchange.is_refused:  # its rejection is there
        return
    exchange.is_refused = True
    route, lease = exchange.route, exchange.lease
    if lease is not None and refusal.error.status >= _OURS and flow.request.method == "POST":
        lease.last_end = CallEnd(
            call_seq=lease.last_seq,
            state="refused",
            kind=refusal.error.kind,
            status=refusal.error.status,
            boundary=str(Boundary.PROVIDER),
            message=refusal.error.message,
        )
    details: dict[str, Any] = {"message": refusal.error.message[:500]}
    recorder.reject(
        reason=refusal.reason,
        status=refusal.error.status,
        dialect=exchange.dialect.name if route is not None else "",
        secret=exchange.secret or (route.secret if route is not None else None),
        session_id=refusal.session_id or (lease.session_id if lease is not None else ""),
        method=flow.request.method,
        path=bare_path(flow.request.path, recorder.book.is_known),
        host=host_of(flow.request, is_forward=exchange.is_forward),
        request_bytes=len(flow.request.raw_content or b"") if request_bytes is None else request_bytes,
        details=details,
    )


def bare_path(path: str, is_secret: Callable[[str], bool] = lambda _segment: False) -> str:
    """A path as it may be logged: without any secret, and without the query.

    A secret stands behind a segment `s`, wherever that is (a base URL may have been put together wrongly), or is known as one.
    """
    kept: list[str] = []
    is_after_mark = False
    raw = path.partition("?")[0][:_MAX_PATH].encode("utf-8", "surrogateescape")  # it may hold bytes that are no text
    for segment in unquote_to_bytes(raw).split(b"/"):
        text = segment.decode("utf-8", "replace")
        kept.append(_HIDDEN if text and (is_after_mark or is_secret(text)) else text)
        is_after_mark = text == "s"
    bare = "/".join(kept)
    leading = f"/s/{_HIDDEN}"
    return (bare.removeprefix(leading) or "/")[:200]


def host_of(request: http.Request, *, is_forward: bool = False) -> str:
    """The host that a client wanted, for the rejection's record: of a tunnel its target, whatever header lies inside."""
    return (request.host if is_forward else request.pretty_host).encode("utf-8", "replace").decode()[:200]
