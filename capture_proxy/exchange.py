"""What the addons know of one HTTP exchange, and the rule that none of them may fail open."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from mitmproxy import http

from capture_proxy.call import Call, Prompt
from capture_proxy.dialects import DIALECTS, Dialect, Route
from capture_proxy.dialects.detect import split_secret
from capture_proxy.leases import Lease
from capture_proxy.recorder import Recorder
from capture_proxy.reply import ChatRequest, ProxyError

log = structlog.get_logger(__name__)

_KEY: Final = "polynya.exchange"


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


def refuse(recorder: Recorder, flow: http.HTTPFlow, exchange: Exchange, refusal: RefusedError) -> None:
    """Answers with the refusal and records it: with the secret's hash, never the secret."""
    answer_error(flow, exchange, refusal.error)
    route, lease = exchange.route, exchange.lease
    details: dict[str, Any] = {"message": refusal.error.message[:500]}
    recorder.reject(
        reason=refusal.reason,
        status=refusal.error.status,
        dialect=exchange.dialect.name if route is not None else "",
        secret=route.secret if route is not None else None,
        session_id=refusal.session_id or (lease.session_id if lease is not None else ""),
        method=flow.request.method,
        path=bare_path(flow.request.path),
        host=flow.request.pretty_host,
        request_bytes=len(flow.request.raw_content or b""),
        details=details,
    )


def bare_path(path: str) -> str:
    """A path as it may be logged: without the secret's segment and without the query."""
    bare = split_secret(path.partition("?")[0])[0][:200]
    return bare.encode("utf-8", "replace").decode()  # it may hold bytes that are no text
