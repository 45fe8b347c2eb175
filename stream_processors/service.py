"""Runs stream processors: one or several of the three Faust apps in one process and one event loop.

In: names and bus settings. A crash of Faust (a broker that was away too long, a lost group) restarts that app from its
committed offsets; only `stop` or a cancellation ends the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import faust
import structlog

from bus import Bus, BusSettings, DeadLetters, Problem, connect
from stream_processors.app import Processor, build_app
from stream_processors.intake import Intake
from stream_processors.settings import ProcessorSettings

_log = structlog.get_logger(__name__)

START_DEADLINE_S: Final = 120.0
"""Joining the group and reading the tables back; a member that was killed is waited out by the broker first."""

STOP_DEADLINE_S: Final = 15.0
RESTART_PAUSE_S: Final = 1.0
WATCH_S: Final = 0.25
RELEARN_S: Final = 5.0
"""How often a partition that is held at an unknown schema looks whether the registry has learnt it."""


@dataclass(frozen=True, slots=True)
class ProcessorHealth:
    """How one processor does; progress means that `handled` grows or `lag` is 0."""

    name: str
    is_ready: bool
    is_healthy: bool
    handled: int
    buried: int
    restarts: int
    lag: dict[tuple[str, int], int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    last_handled_at: int = 0


def intake_of(bus: Bus, processor: Processor) -> Intake:
    """The record boundary of one processor."""
    return Intake(
        processor.handle,
        bus.blobs,
        DeadLetters(bus, processor.name),
        by_header=processor.by_header,
        on_done=processor.done,
    )


class ProcessorService:
    """Hosts one processor: builds its Faust app, watches it, and builds it again when it crashed."""

    def __init__(self, settings: BusSettings, bus: Bus, processor: Processor) -> None:
        self.processor = processor
        self.ready = asyncio.Event()
        self.intake = intake_of(bus, processor)
        self._settings = settings
        self._bus = bus
        self._app: faust.App | None = None
        self._restarts = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set."""
        while not stop.is_set():
            try:
                await self._run_once(stop)
            except Exception as error:  # noqa: BLE001 - the service boundary: Faust's crash isn't ours
                _log.error("processor.crashed", processor=self.processor.name, error=repr(error))
            self.ready.clear()
            if not stop.is_set():
                self._restarts += 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RESTART_PAUSE_S):
                        await stop.wait()

    async def _run_once(self, stop: asyncio.Event) -> None:
        partitions = len(await self._bus.end_offsets(self.processor.topics[0]))
        self.intake.problems.clear()
        app, acknowledger = build_app(self._settings, self.processor, self.intake, partitions)
        self._app = app
        starting = asyncio.ensure_future(app.start())
        background = [asyncio.create_task(acknowledger.run())]
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                await _first(starting, stop, app)
            if starting.done() and not stop.is_set():
                starting.result()
                background += [asyncio.create_task(work) for work in self.processor.background()]
                self.ready.set()
                _log.info("processor.ready", processor=self.processor.name, partitions=partitions)
                await self._watch(app, stop, background)
                if stop.is_set():
                    await acknowledger.flush_quietly()
        finally:
            for task in [*background, starting]:
                task.cancel()
            await asyncio.gather(*background, starting, return_exceptions=True)
            await _stop_app(app)

    async def _watch(self, app: faust.App, stop: asyncio.Event, background: list[asyncio.Task[None]]) -> None:
        """Return when it is time to stop or to start afresh; raises what ended the app or its background work."""
        loop = asyncio.get_running_loop()
        relearn_at = loop.time() + RELEARN_S
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await stop.wait()
            _raise_if_crashed(app)
            for task in background:
                if task.done():
                    task.result()
                    raise RuntimeError("background work ended by itself")
            if loop.time() >= relearn_at:
                relearn_at = loop.time() + RELEARN_S
                if self.intake.has_learnt():
                    _log.info("registry.learnt", processor=self.processor.name)
                    return

    def health(self) -> ProcessorHealth:
        """How it does now; `problems` names topic, partition and offset of what stands still."""
        done = self.intake.health
        problems = tuple(self.intake.problems.values())
        return ProcessorHealth(
            name=self.processor.name,
            is_ready=self.ready.is_set(),
            is_healthy=self.ready.is_set() and not problems,
            handled=done.handled,
            buried=done.buried,
            restarts=self._restarts,
            lag=self._lag(),
            problems=problems,
            last_handled_at=done.last_handled_at,
        )

    def _lag(self) -> dict[tuple[str, int], int]:
        """Records behind the end, per partition of the source topics, where Faust knows the end."""
        if self._app is None or not self.ready.is_set():
            return {}
        names = {self._settings.physical(t): t for t in self.processor.topics}
        consumer = self._app.consumer
        lag: dict[tuple[str, int], int] = {}
        for tp in consumer.assignment():
            if tp.topic in names and (end := consumer.highwater(tp)) is not None:
                committed = getattr(consumer, "_committed_offset", {}).get(tp)  # no public accessor
                lag[names[tp.topic], tp.partition] = max(0, end - (committed or 0))
        return lag


async def _first(starting: asyncio.Future[Any], stop: asyncio.Event, app: faust.App) -> None:
    """Wait until the app is up, has crashed, or is no longer wanted."""
    while not (starting.done() or stop.is_set()):
        _raise_if_crashed(app)
        await asyncio.wait({starting}, timeout=WATCH_S)


def _raise_if_crashed(app: faust.App) -> None:
    if app.crashed:
        raise RuntimeError(f"faust crashed: {app.crash_reason!r}")


async def _stop_app(app: faust.App) -> None:
    try:
        async with asyncio.timeout(STOP_DEADLINE_S):
            await app.stop()
    except Exception as error:  # noqa: BLE001 - a crashed app may not stop cleanly; what isn't committed comes again
        _log.warning("processor.unclean_stop", app=str(app.conf.id), error=repr(error))


Factory = Callable[[Bus, ProcessorSettings], Processor]


def factories() -> dict[str, Factory]:
    """The three processors by name."""
    from stream_processors.assembler.app import Assembler
    from stream_processors.joiner.app import Joiner
    from stream_processors.orchestrator.app import Orchestrator

    return {
        "assembler": lambda bus, _: Assembler(bus),
        "joiner": lambda bus, _: Joiner(bus),
        "orchestrator": Orchestrator,
    }


async def run(
    names: str | Iterable[str],
    settings: ProcessorSettings,
    *,
    stop: asyncio.Event | None = None,
    on_start: Callable[[list[ProcessorService]], None] | None = None,
) -> None:
    """Run one or several of assembler, joiner, orchestrator until `stop` is set, or until SIGTERM or SIGINT.

    `on_start` gets the services, whose `ready` and `health()` tell how they do. Raises KeyError for an unknown name.
    """
    # Its timers complain about every commit that a busy machine delays.
    logging.getLogger("mode.timers").setLevel(logging.ERROR)
    wanted = [names] if isinstance(names, str) else list(names)
    known = factories()
    makers = [known[name] for name in wanted]
    stop = stop or asyncio.Event()
    with _stopped_by_signals(stop):
        async with connect(settings.bus) as bus:
            services = [ProcessorService(settings.bus, bus, make(bus, settings)) for make in makers]
            if on_start is not None:
                on_start(services)
            async with asyncio.TaskGroup() as group:
                for service in services:
                    group.create_task(service.run(stop), name=service.processor.name)


@contextlib.contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    installed: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        # Only the main thread may handle signals; elsewhere `stop` is the way.
        with contextlib.suppress(RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.set)
            installed.append(number)
    try:
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)
