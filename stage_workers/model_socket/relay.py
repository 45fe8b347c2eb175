"""One client's connection: its bytes to the session's proxy and back, with back-pressure, half-closes, and a second proxy when one dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

import structlog

from stage_workers.model_socket.exchange import Budget, Exchange, State
from stage_workers.model_socket.limits import SocketLimits, Tally
from stage_workers.model_socket.route import Route, RouteOver, Upstream
from stage_workers.model_socket.sides import dial, drop, tear_off

log = structlog.get_logger(__name__)

_PAUSE_S: Final = 0.2
"""Between tries to connect to a proxy that is said to be well."""
_RESENDS: Final = 3
"""How often one request is sent again when a proxy that is well drops it unanswered: more often it is the request."""
_DENIED: Final = (b"401", b"409")
"""Statuses by which a proxy says that our secret opens nothing (any more): after a restart, or a seal at its stop."""


class Connection(asyncio.Protocol):
    """The client's side. `on_end` is called once, when nothing of it is left."""

    def __init__(
        self,
        route: Route,
        limits: SocketLimits,
        budget: Budget,
        tally: Tally,
        *,
        on_end: Callable[[Connection], None],
    ) -> None:
        self._route = route
        self._limits = limits
        self._tally = tally
        self._on_end = on_end
        self.exchange = Exchange(limits.resend_bytes, budget)
        self._client: asyncio.Transport | None = None
        self._proxy: asyncio.Transport | None = None
        self.upstream: Upstream | None = None
        """Where its bytes go now."""
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._work: asyncio.Task[None] | None = None
        self._has_client_ended = False
        self._resends = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for bytes of the proxy's."""
        return self.exchange.state in {State.PENDING, State.ANSWERING}

    # --- the client's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there; a proxy is connected to once it says something."""
        self._client = cast("asyncio.Transport", transport)
        self._client.set_write_buffer_limits(self._limits.buffer_bytes)

    def data_received(self, data: bytes) -> None:
        """From the client."""
        if self.exchange.state is State.IDLE:
            self._resends = 0
            if self._proxy is not None and self.upstream != self._route.peek():
                self._drop_proxy()  # another writer has the lease by now
        self.exchange.asked(data)
        if self._proxy is not None and self._work is None:
            self._proxy.write(data)
            return
        self._hold(data)
        self._connect()

    def eof_received(self) -> bool:
        """The client sends no more; it may still read."""
        self._has_client_ended = True
        if self._proxy is not None and self._work is None and self._proxy.can_write_eof():
            self._proxy.write_eof()
        elif self._proxy is None and self._work is None:
            return False  # it never asked for anything, or has had all its answers
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        del exc
        self.abort()

    def pause_writing(self) -> None:
        """The client takes nothing at the moment: nor do we, from its proxy."""
        if self._proxy is not None:
            self._proxy.pause_reading()

    def resume_writing(self) -> None:
        """It does again."""
        if self._proxy is not None:
            self._proxy.resume_reading()

    # --- the proxy's side, called by `ProxySide`

    def from_proxy(self, data: bytes) -> None:
        """Bytes of the answer."""
        if self._client is None:
            return
        self._tally.is_last_cut = False
        if data[9:12] in _DENIED and self.exchange.pending is not None and self._proxy is not None:
            self._proxy.pause_reading()
            self._begin(self._answer_denied(data))
            return
        self.exchange.answer(data)
        self._client.write(data)
        if self._has_client_ended and self.exchange.state is State.IDLE:
            self._end(is_cut=False)

    def proxy_paused(self) -> None:
        """The proxy takes nothing at the moment."""
        if self._client is not None:
            self._client.pause_reading()

    def proxy_resumed(self) -> None:
        """It does again."""
        if self._client is not None and self._unsent_bytes <= self._limits.buffer_bytes:
            self._client.resume_reading()

    def proxy_half_closed(self) -> bool:
        """The proxy sends no more; whether it may still read (only in a tunnel: a request has its whole answer by then)."""
        if self.exchange.state is State.OPAQUE and self._client is not None and not self._has_client_ended:
            self._client.write_eof()
            return True
        return False

    def proxy_ended(self) -> None:
        """The proxy closed its side."""
        upstream, is_cut = self.upstream, False
        self._drop_proxy()
        if self._client is None or upstream is None or self._work is not None:
            return
        match self.exchange.state:
            case State.IDLE if not self._has_client_ended and not self.exchange.is_last:
                return  # the next request gets another connection
            case State.PENDING if self._resend():
                self._connect(after=upstream)
                return
            case State.PENDING:
                is_cut = True
            case State.ANSWERING:
                # An answer without a length ends like this too; the look at the proxy tells.
                is_cut = True
                self._begin(self._end_after_look(upstream))
                return
        self._end(is_cut=is_cut)

    async def _end_after_look(self, upstream: Upstream) -> None:
        try:
            is_well = await self._route.verified(upstream) == upstream
        except RouteOver:
            is_well = False
        self._work = None
        self._end(is_cut=not is_well)

    def proxy_failed(self) -> None:
        """The proxy's connection broke, or the proxy is given up."""
        upstream = self.upstream
        self._drop_proxy()
        if self._client is None or upstream is None or self._work is not None:
            return
        if self.exchange.state is State.IDLE and not self._has_client_ended:
            return
        if self._resend():
            self._connect(after=upstream)
            return
        # A client that had all its answers, and only waits for the proxy to close, too, missed nothing.
        self._end(is_cut=self.exchange.state is not State.IDLE)

    def leave(self, upstream: Upstream) -> None:
        """A proxy is dead: whatever went there doesn't any more."""
        if self.upstream == upstream and self._proxy is not None:
            self.proxy_failed()

    # --- between them

    def _resend(self) -> bool:
        """Puts the unanswered request in line again; False when it can't be sent a second time."""
        pending = self.exchange.pending
        if pending is None or self._resends >= _RESENDS:
            return False
        self._resends += 1
        self._tally.resent += 1
        self._unsent, self._unsent_bytes = pending, sum(map(len, pending))
        return True

    def _hold(self, data: bytes) -> None:
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > self._limits.buffer_bytes and self._client is not None:
            self._client.pause_reading()

    def _connect(self, after: Upstream | None = None) -> None:
        if self._work is None:
            self._begin(self._connected(after))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = asyncio.create_task(self._finished(work), name="model-socket")

    async def _finished(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception:  # a connection's boundary: one client's trouble must not reach the others
            log.exception("model_socket.connection_failed")
            self._work = None
            self.abort()

    async def _connected(self, after: Upstream | None) -> None:
        """Connects to the session's proxy, whichever that is by now, and sends what waits."""
        try:
            async with asyncio.timeout(self._limits.hold_s):
                upstream = await (self._route.current() if after is None else self._route.verified(after))
                while (proxy := await dial(self, upstream, self._limits.buffer_bytes)) is None:
                    upstream = await self._route.verified(upstream)
                    await asyncio.sleep(_PAUSE_S)
        except (RouteOver, TimeoutError) as error:
            log.warning("model_socket.given_up", reason=str(error) or f"no proxy for {self._limits.hold_s:g} s")
            self._work = None
            self._end(is_cut=True)
            return
        self._work = None
        if self._client is None:
            proxy.abort()
            return
        self._proxy, self.upstream = proxy, upstream
        waiting, self._unsent, self._unsent_bytes = self._unsent, [], 0
        proxy.writelines(waiting)
        if self._has_client_ended and proxy.can_write_eof():
            proxy.write_eof()
        elif proxy.get_write_buffer_size() <= self._limits.buffer_bytes:
            self._client.resume_reading()

    async def _answer_denied(self, data: bytes) -> None:
        """The proxy doesn't take our secret: passed on if that is so, else the request goes to the proxy that does."""
        upstream = self.upstream
        assert upstream is not None
        try:
            found = await self._route.verified(upstream)
        except RouteOver:
            found = upstream
        self._work = None
        if self._client is None:
            return
        if found != upstream and self._resend():
            self._drop_proxy()
            self._connect()
            return
        self.exchange.answer(data)
        self._client.write(data)
        waiting, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if self._proxy is None:
            self._end(is_cut=False)
            return
        self._proxy.writelines(waiting)
        self._proxy.resume_reading()

    def _drop_proxy(self) -> None:
        if self._proxy is not None:
            drop(self._proxy)
        self._proxy = None

    def _end(self, *, is_cut: bool) -> None:
        """Closes the client's side: in order, or torn off."""
        client, self._client = self._client, None
        if client is None:
            return
        if is_cut:
            self._tally.cut += 1
            self._tally.is_last_cut = True
            tear_off(client)
        else:
            client.close()
        self._done()

    def abort(self) -> None:
        """Ends it at once, on both sides."""
        if self._client is None:
            return
        client, self._client = self._client, None
        client.abort()
        self._done()

    def _done(self) -> None:
        self._drop_proxy()
        if self._work is not None:
            self._work.cancel()
        self._unsent, self._unsent_bytes = [], 0
        self.exchange.close()
        self._on_end(self)
