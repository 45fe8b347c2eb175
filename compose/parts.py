"""The parts of a stack, each run alone in this process: from the one settings object to the part's own."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bus import BusSettings
from compose.cli.connect import bus_settings
from compose.errors import usage
from compose.runtime_info import ready_file
from compose.settings import StackSettings, admin_key, api_key, authority_dir, callback_key, default_cache
from schemas.topics import Topic

Runner = Callable[[StackSettings], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PartKind:
    """How a part is run, and how long it may take to stop."""

    run: Runner
    stop_within_s: float = 20.0


def internal_topics() -> list[Topic]:
    """Topics beside the catalogue: the changelogs of the stream processors' tables."""
    from stream_processors import changelog_topics

    return changelog_topics()


FOLLOWING_WAIT_MS: Final = 4000
"""How long the fetch of a part that only follows small topics may wait: a record ends the wait at once."""


STREAM_INTERVAL_MS: Final = 20.0
"""Of the CPU engine's events: short for a reader, several tokens of a tiny model."""


def bus_for(settings: StackSettings, part: str, *, follows: bool = False) -> BusSettings:
    """The bus settings of one part; its name is its client id in the brokers' logs. `follows`: it reads what is new, record by record."""
    chosen: dict[str, object] = {"client_id": f"polynya-{part}"}
    if follows:
        chosen["fetch_wait_ms"] = FOLLOWING_WAIT_MS
    return bus_settings(settings).model_copy(update=chosen)


def say_ready(settings: StackSettings, part: str, facts: dict[str, object] | None = None) -> None:
    """Write the part's ready file, whole."""
    path = ready_file(settings.state_dir, part)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({"pid": os.getpid(), **(facts or {})}))
    partial.replace(path)


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _sglang(settings: StackSettings) -> None:
    from compose.sglang import SglangServer, ensure_environment, find_device

    def report(line: str) -> None:
        sys.stderr.write(line + "\n")

    device = find_device()
    python = await asyncio.to_thread(ensure_environment, device, report)
    stop = _stop_on_signals()
    server = SglangServer(
        python,
        model=Path(settings.model),
        device=device,
        host=settings.host,
        port=settings.engine_port,
        name=settings.policy_id,
        extra=shlex.split(settings.engine_options),
        report=report,
    )
    async with server:
        say_ready(settings, "engine", {"url": server.url, "model": settings.model})
        ended, stopping = asyncio.create_task(server.wait()), asyncio.create_task(stop.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not stop.is_set():
            raise RuntimeError(f"SGLang ended by itself ({ended.result()}): its output is above")
        ended.cancel()


async def _engine(settings: StackSettings) -> None:
    if settings.engine == "sglang":
        await _sglang(settings)
        return
    from compose.cpu_engine.server import serving
    from compose.cpu_engine.service import Engine
    from compose.cpu_engine.settings import EngineSettings
    from compose.cpu_engine.tiny_model import ensure_tiny_model

    sys.path.insert(0, str(Path.cwd()))  # a policy's module is looked up from where one stands
    model = Path(settings.model) if settings.model else await asyncio.to_thread(ensure_tiny_model)
    engine = await asyncio.to_thread(
        Engine.load,
        EngineSettings(
            model=model,
            host=settings.host,
            port=settings.engine_port,
            policy=settings.engine if settings.engine.startswith("scripted:") else None,
            served_model_name=settings.policy_id,
            weight_version=settings.weight_version,
            token_delay_ms=settings.token_delay_ms,
            incremental_streaming_output=True,  # cumulative events cost the square of a reply
            stream_interval_ms=STREAM_INTERVAL_MS,
        ),
    )
    stop = _stop_on_signals()  # only now: a signal while the model loads, in a thread, may end this process at once
    async with serving(engine) as url:
        say_ready(settings, "engine", {"url": url, "model": str(model)})
        await stop.wait()


def _processors(*names: str, part: str) -> Runner:
    async def run(settings: StackSettings) -> None:
        from stream_processors import ProcessorService, ProcessorSettings
        from stream_processors import run as run_processors

        watchers: list[asyncio.Task[None]] = []

        async def announce(services: Iterable[ProcessorService]) -> None:
            for service in services:
                await service.ready.wait()
            say_ready(settings, part)

        def on_start(services: list[ProcessorService]) -> None:
            watchers.append(asyncio.create_task(announce(services)))

        await run_processors(
            names,
            ProcessorSettings(
                bus=bus_for(settings, part, follows=True),
                lease_ttl_s=settings.lease_ttl_s,
                seal_grace_s=settings.seal_grace_s,
                max_lag_groups=settings.max_lag_groups,
            ),
            on_start=on_start,
        )
        for watcher in watchers:
            watcher.cancel()

    return run


async def _proxy(settings: StackSettings) -> None:
    from capture_proxy.service import run as run_proxy
    from capture_proxy.settings import EngineSettings, ProxySettings
    from capture_proxy.vendors import VENDORS, more_vendors

    if not settings.engine.startswith(("http://", "https://")):
        raise usage(
            f"a proxy alone needs its engine's URL, not {settings.engine!r}", hint="POLYNYA_ENGINE=http://HOST:PORT"
        )
    if not settings.model:
        raise usage("a proxy alone needs the model's tokenizer", hint="POLYNYA_MODEL=DIRECTORY")
    await run_proxy(
        ProxySettings(
            proxy_id=settings.proxy_name,
            bus=bus_for(settings, settings.part_name or "proxy", follows=True),
            spool_dir=settings.spools,
            model_dir=Path(settings.model),
            model_names=(settings.policy_id,),
            engines=(EngineSettings(url=settings.engine, kind=settings.engine_kind, policy_id=settings.policy_id),),
            admin_key=admin_key(settings),
            host=settings.host,
            port=settings.proxy_port,
            admin_host=settings.host,
            admin_port=settings.proxy_admin_port,
            ports_file=ready_file(settings.state_dir, settings.part_name or "proxy"),
            forward_host=settings.host,
            forward_port=settings.forward_port if settings.forward else None,
            forward_vendors=(*VENDORS, *more_vendors(settings.forward_vendors)),
            forward_pass_through=tuple(filter(None, map(str.strip, settings.forward_pass_through.split(",")))),
            authority_dir=authority_dir(settings),
            ack_wait_ms=settings.ack_wait_ms,
            heartbeat_s=settings.heartbeat_s,
        )
    )


async def _worker(settings: StackSettings) -> None:
    from stage_workers.service import run as run_worker
    from stage_workers.settings import WorkerSettings

    await run_worker(
        WorkerSettings(
            worker_id=settings.worker_id,
            state_dir=settings.worker_dir,
            admin_key=admin_key(settings),
            cache_dir=default_cache(),
            init_slots=settings.init_slots,
            ready_slots=settings.ready_slots,
            run_slots=settings.run_slots,
            postrun_slots=settings.postrun_slots,
            artifact_retention_s=settings.artifact_retention_s,
            probe_deadline_s=settings.probe_deadline_s,
            hold_s=settings.hold_s,
            heartbeat_s=settings.heartbeat_s,
        ),
        bus_for(settings, settings.part_name or "worker", follows=True),
        on_ready=lambda: say_ready(settings, settings.part_name or "worker"),
    )


async def _archive(settings: StackSettings) -> None:
    from bus import connect
    from bus.archive import archive

    stop = _stop_on_signals()
    async with connect(bus_for(settings, "archive")) as bus:
        say_ready(settings, "archive", {"directory": str(settings.archives)})
        await archive(bus, settings.archives, stop=stop)


async def _api(settings: StackSettings) -> None:
    try:
        from compose.api.service import run as run_api
    except ModuleNotFoundError as missing:
        raise usage(f"the HTTP API needs {missing.name}", hint="pip install 'polynya[api]'") from missing
    from compose.api.settings import ApiSettings

    await run_api(
        ApiSettings(
            key=api_key(settings),
            host=settings.host,
            port=settings.api_port,
            port_file=settings.state_dir / "api.port",
            max_body_bytes=settings.api_max_body_bytes,
            rate_per_s=settings.api_rate_per_s,
            callback_key=callback_key(settings),
            callback_hosts=tuple(filter(None, map(str.strip, settings.api_callback_hosts.split(",")))),
        ),
        bus_for(settings, "api"),
        _stop_on_signals(),
        on_ready=lambda url: say_ready(settings, "api", {"url": url}),
    )


PARTS: dict[str, PartKind] = {
    "engine": PartKind(_engine, stop_within_s=40),
    "proxy": PartKind(_proxy, stop_within_s=30),
    "assembler": PartKind(_processors("assembler", part="assembler")),
    "joiner": PartKind(_processors("joiner", part="joiner")),
    "orchestrator": PartKind(_processors("orchestrator", part="orchestrator")),
    "processors": PartKind(_processors("orchestrator", "assembler", "joiner", part="processors")),
    "worker": PartKind(_worker, stop_within_s=30),
    "archive": PartKind(_archive, stop_within_s=30),
    "api": PartKind(_api),
}


async def run_part(name: str, settings: StackSettings) -> None:
    """Run one part until SIGTERM or SIGINT."""
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    await PARTS[name].run(settings)
