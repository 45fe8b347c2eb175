"""A local stack without Docker: Kafka, engine, proxies, processors and workers, started in order and kept alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from bus import BusSettings, connect
from bus.admin import TopicAdmin
from compose.engines import RegisteredEngine, replace_own_engine
from compose.fleet import Instance, in_order, instances
from compose.kafka import KafkaCluster
from compose.parts import PARTS, internal_topics
from compose.runtime_info import StackInfo, log_file, ready_file
from compose.settings import StackSettings, admin_key
from compose.supervisor import Part, Supervisor, python

# The order in which a stack is taken down: first what makes new work, last what others write to.
STOP_ORDER = ("api", "worker", "proxy", "processors", "orchestrator", "joiner", "assembler", "engine")


SGLANG_READY_WITHIN_S = 1800.0  # a large model is read for minutes


class LocalStack:
    """One stack in one state directory. `report` gets a line per step; `info` is kept in `stack.json`."""

    def __init__(self, settings: StackSettings, info: StackInfo, report: Callable[[str], None]) -> None:
        self.settings = settings
        self.info = info
        self._report = report
        self._kafka: KafkaCluster | None = None
        self._supervisor = Supervisor(self._save_pids)

    def _step(self, line: str) -> None:
        self.info.step = line
        self.info.save(self.settings.state_dir)
        self._report(line)

    def _save_pids(self) -> None:
        self.info.pids = dict(self._supervisor.pids)
        if self._kafka is not None:
            self.info.pids |= {f"kafka-{node}": pid for node, pid in self._kafka.pids.items()}
        self.info.save(self.settings.state_dir)

    async def start(self) -> None:
        """Start everything; raises the error of the first part that can't, with everything stopped again by `stop`."""
        settings = self.settings
        admin_key(settings)
        self.info.policy_id = settings.policy_id
        self.info.topic_prefix = settings.topic_prefix
        engine = asyncio.create_task(self._start_engine())
        try:
            self.info.bootstrap = settings.bootstrap or await self._start_kafka()
            self._step(f"Kafka at {self.info.bootstrap}")
            await self._apply_topics()
            self.info.engine_url, self.info.model_dir = await engine
        finally:
            if not engine.done():
                engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
        hears = await _answers(self.info.engine_url)
        note = "" if hears else " doesn't answer yet; calls fail until it does"
        self._step(f"engine at {self.info.engine_url}{note}")
        await self._register_engine()
        processors = ["processors"] if settings.processors == "together" else ["orchestrator", "assembler", "joiner"]
        (ready, *_), *_ = await asyncio.gather(
            self._start_part("proxy"), *(self._start_part(name) for name in processors)
        )
        self.info.proxy_address = str(ready["data_address"])
        self.info.proxy_admin_address = str(ready["admin_address"])
        self.info.forward_address = str(ready.get("forward_address") or "")
        forward = f" (forward: {self.info.forward_address})" if self.info.forward_address else ""
        more = f" and {settings.proxies - 1} more" if settings.proxies > 1 else ""
        self._step(f"capture proxy at {self.info.proxy_address}{forward}{more}; stream processors")
        await self._start_part("worker")
        if settings.api:
            self.info.api_url = str((await self._start_part("api"))[0]["url"])
        self.info.is_ready = True
        workers = f"{settings.workers} workers" if settings.workers > 1 else "worker"
        api = f"; HTTP API at {self.info.api_url} (its key: polynya api key)" if settings.api else ""
        self._step(f"{workers}{api}; the stack is ready")

    async def _start_kafka(self) -> str:
        self._step("starting Kafka and the engine (what they need is fetched the first time: minutes)")
        first, count = self.settings.kafka_port, self.settings.brokers
        ports = [first + n for n in range(count)] if first else None
        self._kafka = KafkaCluster(self.settings.state_dir / "kafka", nodes=count, ports=ports)
        await asyncio.to_thread(self._kafka.start)
        self._save_pids()
        return self._kafka.bootstrap

    async def _apply_topics(self) -> None:
        async with TopicAdmin(self._bus()) as admin:
            await admin.apply(internal_topics(), partitions=self.settings.partitions)

    async def _start_engine(self) -> tuple[str, str]:
        """The engine's URL and the model directory whose tokenizer the proxy uses."""
        model = self.settings.model or str(await asyncio.to_thread(_tiny_model))
        if self.settings.engine.startswith(("http://", "https://")):
            return self.settings.engine, model
        if self.settings.engine == "sglang":
            await asyncio.to_thread(_prepare_sglang, self._report)
        ready = await self._supervisor.start(self._part(Instance("engine", "engine"), {"POLYNYA_MODEL": model}))
        return str(ready["url"]), model

    def _bus(self) -> BusSettings:
        return BusSettings(
            bootstrap=self.info.bootstrap, topic_prefix=self.settings.topic_prefix, blob_url=self.settings.blobs
        )

    @property
    def _name(self) -> str:
        """How this stack signs what it adds to the timeline."""
        return f"up {self.settings.state_dir}"

    async def _register_engine(self) -> None:
        """The engine is a fact on the timeline, so that every proxy of the policy finds it, also one that is started alone."""
        engine = RegisteredEngine(
            policy_id=self.settings.policy_id,
            url=self.info.engine_url,
            kind=self.settings.engine_kind,
            model=self.info.model_dir,
            added_by=self._name,
        )
        async with connect(self._bus()) as bus:
            await replace_own_engine(bus, engine)

    async def _start_part(self, kind: str) -> list[dict[str, object]]:
        """Starts all processes of a part at once; what each says when it is ready."""
        extra = {
            "POLYNYA_BOOTSTRAP": self.info.bootstrap,
            "POLYNYA_MODEL": self.info.model_dir,
            "POLYNYA_ENGINE": self.info.engine_url,
        }
        parts = [self._part(instance, extra) for instance in instances(self.settings, kind)]
        return list(await asyncio.gather(*(self._supervisor.start(part) for part in parts)))

    def _part(self, instance: Instance, extra: dict[str, str]) -> Part:
        state_dir, kind = self.settings.state_dir, instance.kind
        return Part(
            name=instance.name,
            argv=python("run", kind),
            ready_file=ready_file(state_dir, instance.name),
            log_file=log_file(state_dir, instance.name),
            env={**self.settings.as_env(), **extra, **instance.env},
            ready_within_s=SGLANG_READY_WITHIN_S if (kind, self.settings.engine) == ("engine", "sglang") else 300.0,
            stop_within_s=PARTS[kind].stop_within_s,
        )

    async def run_until(self, stop: asyncio.Event) -> None:
        """Keep the parts alive until `stop`; raises when one is beyond restarting."""
        await self._supervisor.run_until(stop)

    async def stop(self) -> None:
        """Stop everything that was started; the data stays."""
        self.info.is_ready = False
        self._step("stopping")
        await self._supervisor.stop(in_order(self._supervisor.pids, STOP_ORDER))
        if self._kafka is not None:
            await asyncio.to_thread(self._kafka.stop)
        self.info.supervisor_pid = 0
        self.info.pids = {}
        self._step("stopped")


async def _answers(url: str) -> bool:
    """Whether anything speaks HTTP there; a mistyped address is better noticed before the first session."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client,
            client.get(f"{url.rstrip('/')}/health"),
        ):
            return True  # whatever its status: it is there, and may still load its weights
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


def _prepare_sglang(report: Callable[[str], None]) -> None:
    from compose.sglang import ensure_environment, find_device

    ensure_environment(find_device(), report)


def _tiny_model() -> Path:
    from compose.cpu_engine.tiny_model import ensure_tiny_model

    path: Any = ensure_tiny_model()
    return Path(path)
