"""Keeps a running session's lease open: notices when its proxy is lost, or about to go, and opens the next writer at another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import structlog

import harnesses
from schemas.records import SessionEventType, Stage
from stage_workers.admin import ProxyRefusedError, ProxyUnavailableError
from stage_workers.errors import StageFault
from stage_workers.face import Face, forward_address
from stage_workers.kit import Kit
from stage_workers.leases import LeaseOpener, seal_lease
from stage_workers.model_socket import ModelSocket, RouteOver, SocketLimits, Tally
from stage_workers.proxies import ProxyNode
from stage_workers.runtimes import Runtime
from stage_workers.sessions import OpenLease, Session

log = structlog.get_logger(__name__)

T = TypeVar("T")

_ENDING: Final = frozenset({"sealing", "sealed"})


class LeaseKeeper:
    """One session's lease while its harness runs: the model sockets, and the proxy behind them.

    `broken` raises StageFault once the lease can't be had any more: a proxy said that it is over.
    """

    def __init__(self, kit: Kit, session: Session, secret: str, *, is_forward: bool) -> None:
        self._kit = kit
        self._session = session
        self._secret = secret
        self._is_forward = is_forward
        self._authority = ""
        self._opener = LeaseOpener(kit, session, secret, self._fits)
        self._sockets: list[tuple[Face, ModelSocket]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._lease: OpenLease | None = None
        self._changed = asyncio.Event()
        self._look: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._is_closed = False
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tally = Tally()
        self.address = ""
        """The base URL's host and port, as the harness sees them: ours."""
        self.forward: harnesses.ForwardProxy | None = None
        """The forward proxy, at our address, where the harness is captured that way."""

    @property
    def is_moving(self) -> bool:
        """Whether there is no proxy at the moment."""
        return self._lease is None

    @property
    def is_waited_for(self) -> bool:
        """Whether the harness waits for an answer, or for more of one."""
        return any(socket.is_waiting for _, socket in self._sockets)

    async def start(self, runtime: Runtime) -> OpenLease:
        """Opens the lease and the sockets. Raises StageFault, RuntimeFault."""
        lease = await self._opener.first()
        self._use(lease)
        self.address = await self._listen(runtime, lambda node: node.data_address)
        if self._is_forward:
            forward = harnesses.ForwardProxy.announced(lease.node.details)
            if forward is not None:
                self._authority = forward.ca_pem.decode()
                address = await self._listen(runtime, forward_address)
                self.forward = harnesses.ForwardProxy(
                    address=address, ca_pem=forward.ca_pem, system_pem=forward.system_pem
                )
        self._spawn(self._watch(), "watch")
        return lease

    async def _listen(self, runtime: Runtime, address_of: Callable[[ProxyNode], str]) -> str:
        settings = self._kit.settings
        limits = SocketLimits(hold_s=settings.hold_s, resend_bytes=settings.resend_bytes)
        face = Face(self, address_of)
        socket = ModelSocket(await runtime.listen(), face, limits, self._kit.budget, self.tally)
        self._sockets.append((face, socket))
        await socket.start()
        return socket.address

    def _fits(self, node: ProxyNode) -> bool:
        """A harness trusts the authority that it was started with: only a proxy that has the same one can go on for it."""
        if not self._is_forward:
            return True
        forward = node.details.get("forward") or {}
        return bool(forward.get("address")) and self._authority in {"", str(forward.get("ca_pem", ""))}

    async def close(self) -> None:
        """Closes the sockets with all their connections, and looks after the lease no longer."""
        self._is_closed = True  # what a connection finds out from now on begins nothing any more
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, socket in self._sockets:
            await socket.close()
        if not self.broken.done():
            self.broken.cancel()
        elif not self.broken.cancelled():
            self.broken.exception()  # read, so that nobody is told that it never was
        self._notify()

    async def until_broken(self, work: Awaitable[T]) -> T:
        """Does `work`, and cancels it when the lease breaks. Raises StageFault then."""
        task = asyncio.ensure_future(work)
        try:
            watched: set[asyncio.Future[Any]] = {task, self.broken}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.broken.result()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    # --- what the sockets ask

    def peek(self) -> OpenLease | None:
        """The writer in use; None while another one is looked for."""
        return self._lease

    async def current(self) -> OpenLease:
        """The writer in use, as soon as there is one. Raises RouteOver."""
        while self._lease is None:
            if self.broken.done():
                raise RouteOver("the session's lease is over")
            await self._changed.wait()
        return self._lease

    async def examined(self, writer: int) -> OpenLease:
        """The writer in use, after a look at whether this one still is open where it was opened. Raises RouteOver."""
        if self._is_closed:
            raise RouteOver("the session's run is over")
        lease = self._lease
        if lease is not None and lease.writer == writer:
            if self._look is None or self._look.done():
                self._look = self._spawn(self._examine(lease), "examine")
            await asyncio.shield(self._look)
        return await self.current()

    # --- looking

    async def _examine(self, lease: OpenLease) -> None:
        """Asks the proxy about the lease itself."""
        kit = self._kit
        within_s = kit.settings.probe_deadline_s
        why = "" if kit.proxies.is_same(lease.node) else "it was restarted"
        tries = 2
        while not why and tries:
            tries -= 1
            try:
                async with asyncio.timeout(within_s):
                    found = await kit.admin.lease(
                        lease.node.admin_address, self._session.lease_id, lease.writer, within_s
                    )
            except TimeoutError:
                why = f"it doesn't answer within {within_s:g} s"
            except ProxyRefusedError:
                why = "it doesn't know the lease: it was restarted"
            except ProxyUnavailableError as error:
                # A connection that was kept may have broken by itself: the second try is on a new one.
                why = str(error) if error.is_certain or not tries else ""
            else:
                why = f"the lease is {found.get('state')} there" if found.get("state") in _ENDING else ""
                break
        if why:
            self._lose(lease, why)

    async def _watch(self) -> None:
        """Looks at the proxy whenever one of them beats, and while the harness waits for it."""
        kit = self._kit
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(kit.settings.probe_every_s):
                    await kit.proxies.changed()
            lease = self._lease
            if lease is None:
                continue
            if not kit.proxies.is_same(lease.node):
                self._lose(lease, "it was restarted")
            elif kit.proxies.now(lease.node).is_stopping:
                self._hand_over(lease)
            elif self.is_waited_for and (why := await kit.guard.loss(lease.node)):
                self._lose(lease, why)

    # --- moving

    def _lose(self, lease: OpenLease, why: str) -> None:
        """The proxy is gone: connections are held until the lease is open elsewhere."""
        if self._is_closed or self._lease is not lease:
            return
        log.warning("proxy.lost", session_id=self._session.session_id, proxy=lease.node.node_id, why=why)
        self._lease = None
        self._begin_move(lease, why)
        for face, socket in self._sockets:
            socket.leave(face.of(lease))

    def _hand_over(self, lease: OpenLease) -> None:
        """The proxy is about to stop: answers that have begun come to their end there, new requests go elsewhere."""
        if any(node.node_id != lease.node.node_id and self._fits(node) for node in self._kit.proxies.fresh()):
            self._begin_move(lease, "it stops")

    def _begin_move(self, old: OpenLease, why: str) -> None:
        if self._moving is None or self._moving.done():
            self._moving = self._spawn(self._move(old, why), "move")

    async def _move(self, old: OpenLease, why: str) -> None:
        session = self._session
        try:
            lease = await self._opener.next(frozenset({old.node.node_id}), held=old)
        except StageFault as fault:
            log.warning("lease.over", session_id=session.session_id, error=fault.error)
            self._lease = None
            if not self.broken.done():
                self.broken.set_exception(fault)
            self._notify()
            return
        self._use(lease)
        if lease.writer == old.writer:
            return
        log.info(
            "lease.moved",
            session_id=session.session_id,
            lease_id=session.lease_id,
            writer=lease.writer,
            proxy=lease.node.node_id,
            why=why,
        )
        self._kit.tell(
            session,
            SessionEventType.STARTED,
            stage=Stage.RUNNING,
            writers=list(session.writers),
            details={"proxy": lease.node.node_id, "takes_over": old.writer, "why": why},
        )
        # Where the old proxy is well after all, its calls are waited for until its writer is sealed.
        self._spawn(self._retire(old), "retire")

    async def _retire(self, old: OpenLease) -> None:
        await seal_lease(self._kit, self._session, old, "taken_over", self._kit.settings.seal_deadline_s)

    def _use(self, lease: OpenLease) -> None:
        self._lease = lease
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"{what}-{self._session.session_id}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("lease.keeper_failed", session_id=self._session.session_id, error=repr(error))


@contextlib.asynccontextmanager
async def keeping(kit: Kit, session: Session, secret: str, runtime: Runtime) -> AsyncIterator[LeaseKeeper]:
    """Keeps a session's lease for the block. Raises StageFault when it can't be opened, RuntimeFault when nothing can listen."""
    is_forward = session.task.harness.options.get("capture") == "forward"
    keeper = LeaseKeeper(kit, session, secret, is_forward=is_forward)
    try:
        await keeper.start(runtime)
        yield keeper
    finally:
        await keeper.close()
