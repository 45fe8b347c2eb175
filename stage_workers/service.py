"""The worker as a process: settings to parts, start to stop."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

import harnesses
from bus import Bus, BusSettings, Delivery, Reader, Start, connect
from schemas.records import Record
from stage_workers import commands, watch
from stage_workers.admin import AdminClient
from stage_workers.commands import Commands
from stage_workers.errors import EndingKind
from stage_workers.facts import FactQueue
from stage_workers.flow import Flow
from stage_workers.guard import ProxyGuard
from stage_workers.health import COMPONENT, Health
from stage_workers.heartbeat import HeartbeatLoop
from stage_workers.kit import Installer, Kit, logs_dir, now_ms
from stage_workers.model_socket.exchange import Budget
from stage_workers.proxies import ProxyView
from stage_workers.reaper import owner_of, prune_logs, reap, runtimes_dir, state_lock, sweep
from stage_workers.runtimes.factory import Runtimes
from stage_workers.runtimes.network import NetworkSpace
from stage_workers.sessions import Holdings
from stage_workers.settings import WorkerSettings
from stage_workers.watch import Watch

log = structlog.get_logger(__name__)

# Proxies that beat within this time before our start are seen at once, without waiting for their next beat.
_NODES_BACK_MS = 120_000
_RETRY_S = 1.0


async def run(settings: WorkerSettings, bus: BusSettings, *, on_ready: Callable[[], None] = lambda: None) -> None:
    """Runs a worker until SIGTERM or SIGINT; `on_ready` is called once its first heartbeat is acknowledged."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with connect(bus) as connected:
        await WorkerService(settings, connected).run(stop, on_ready=on_ready)


class WorkerService:
    """One incarnation of a worker."""

    def __init__(self, settings: WorkerSettings, bus: Bus, *, install: Installer | None = None) -> None:
        """`install` replaces the installation of harnesses (in tests)."""
        self._settings = settings
        self._bus = bus
        self._install = install or self._ensure_installed
        self.incarnation = uuid.uuid4().hex

    async def run(self, stop: asyncio.Event, *, on_ready: Callable[[], None] = lambda: None) -> None:
        """Works until `stop` is set, then: stop claiming → drain or kill → flush → close.

        Raises:
            StateDirBusyError: another worker holds the state directory.
        """
        settings = self._settings
        with state_lock(settings.state_dir):
            await reap(settings.state_dir, settings.worker_id)
            await asyncio.to_thread(prune_logs, logs_dir(settings.state_dir), settings.keep_logs)
            async with AsyncExitStack() as stack:
                admin = await stack.enter_async_context(AdminClient(settings.admin_key))
                await self._work(admin, stop, on_ready)

    async def _work(self, admin: AdminClient, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
        settings, health = self._settings, Health()
        facts = FactQueue(self._bus)
        holdings = Holdings(
            init_slots=settings.init_slots,
            ready_slots=settings.ready_slots,
            run_slots=settings.run_slots,
            postrun_slots=settings.postrun_slots,
        )
        runtimes = Runtimes(
            root=runtimes_dir(settings.state_dir),
            owner=f"{owner_of(settings.state_dir, settings.worker_id)}/{self.incarnation}",
            grace_s=settings.kill_grace_s,
            cache_dir=settings.cache_dir or harnesses.default_cache(),
        )
        heartbeat = HeartbeatLoop(
            self._bus,
            settings,
            self.incarnation,
            holdings=holdings,
            facts=facts,
            health=health,
            details={"runtimes": runtimes.kinds, "trusted": not await NetworkSpace.is_possible()},
        )
        proxies = ProxyView(settings.proxy_fresh_s, now_ms)
        kit = Kit(
            settings=settings,
            incarnation=self.incarnation,
            facts=facts,
            holdings=holdings,
            proxies=proxies,
            admin=admin,
            guard=ProxyGuard(admin, proxies, every_s=settings.probe_every_s, deadline_s=settings.probe_deadline_s),
            budget=Budget(settings.resend_total_bytes),
            runtimes=runtimes,
            install=self._install,
            bus=self._bus,
            nudge=heartbeat.nudge,
        )
        flow = Flow(kit)
        inbox = Commands(kit, flow.begin)
        readers = await self._readers(kit, inbox, health)
        log.info("worker.started", worker_id=settings.worker_id, incarnation=self.incarnation)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(facts.run()), *(group.create_task(reader.run()) for reader in readers)]
                tasks.append(group.create_task(heartbeat.run()))
                tasks.append(group.create_task(self._tidy(holdings)))
                await _first_of(stop, heartbeat.is_heard)
                if heartbeat.is_heard.is_set():
                    on_ready()
                await stop.wait()
                inbox.is_draining = heartbeat.is_draining = True
                heartbeat.nudge()
                await self._drain(kit, flow)
                await facts.flush(settings.flush_deadline_s)
                await heartbeat.publish()
                for task in tasks:
                    task.cancel()
        finally:
            # Also when a part crashed: no harness may outlive its worker.
            for session in holdings:
                session.end(EndingKind.SHUTDOWN, "the worker stops")
            await flow.drained()
            await runtimes.close()
            log.info("worker.stopped", worker_id=settings.worker_id, incarnation=self.incarnation)

    async def _tidy(self, holdings: Holdings) -> None:
        """Ends orphans and keeps the logs within their bound, for as long as the worker lives."""
        settings = self._settings
        while True:
            await asyncio.sleep(settings.sweep_every_s)
            if not settings.keep_work:
                owner = owner_of(settings.state_dir, settings.worker_id)
                await sweep(settings.state_dir, owner, self.incarnation, holdings.has_runtime)
            await asyncio.to_thread(prune_logs, logs_dir(settings.state_dir), settings.keep_logs)

    async def _drain(self, kit: Kit, flow: Flow) -> None:
        """Lets what runs go on for `drain_s`, then takes every session away."""
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await flow.drained()
        except TimeoutError:
            for session in kit.holdings:
                session.end(EndingKind.SHUTDOWN, "the worker stops")
            await flow.drained()

    async def _readers(self, kit: Kit, inbox: Commands, health: Health) -> list[Reader]:
        """The readers, with their places in the log as it is now, before the first heartbeat."""
        watcher = Watch(kit)
        while True:
            try:
                places = {}
                for topic in commands.TOPICS:
                    partition = await self._bus.partition_for(topic, self._settings.worker_id)
                    places[topic] = partition, (await self._bus.end_offsets(topic))[partition]
                ends = {
                    (topic, partition): offset
                    for topic in watch.TOPICS
                    for partition, offset in (await self._bus.end_offsets(topic)).items()
                }
                break
            except Exception as error:  # noqa: BLE001  # stage boundary: a worker waits for Kafka rather than dying of it
                log.warning("worker.waiting", error=str(error))
                await asyncio.sleep(_RETRY_S)
        return [
            *(
                self._reader(
                    topic,
                    lambda record, _: inbox.take(record),
                    health,
                    {(topic, partition): offset},
                    topics=[topic],
                    partitions=[partition],
                )
                for topic, (partition, offset) in places.items()
            ),
            self._reader("sessions", lambda record, _: watcher.take(record), health, ends, topics=watch.TOPICS),
            self._reader("nodes", kit.proxies.take, health, now_ms() - _NODES_BACK_MS, topics=["rollout.nodes"]),
        ]

    def _reader(
        self,
        name: str,
        take: Callable[[Record, int], None],
        health: Health,
        start: Start,
        *,
        topics: Sequence[str],
        partitions: Sequence[int] | None = None,
    ) -> Reader:
        async def take_record(delivery: Delivery, record: Record | None) -> None:
            if record is not None:
                take(record, delivery.timestamp_ms)

        return Reader(
            self._bus,
            COMPONENT,
            name,
            take_record,
            topics=topics,
            start=start,
            partitions=partitions,
            problems=health.problems,
        )

    def _ensure_installed(self, adapter: harnesses.Adapter) -> harnesses.Installed:
        cache: Path | None = self._settings.cache_dir
        return harnesses.ensure_installed(adapter, cache, lambda line: log.info("harness.progress", what=line))


async def _first_of(*events: asyncio.Event) -> None:
    """Returns when one of the events is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
