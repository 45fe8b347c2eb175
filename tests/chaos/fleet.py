"""A fleet for a storm: three brokers, an engine, proxies, workers and processors, each a process of its own in a directory of its own."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from bus import Bus, BusSettings, connect
from bus.admin import TopicAdmin
from compose.cpu_engine.tiny_model import ensure_tiny_model
from compose.engines import RegisteredEngine, replace_own_engine
from compose.kafka import KafkaCluster
from compose.kafka.config import free_ports
from compose.parts import internal_topics
from compose.settings import StackSettings, default_cache
from compose.supervisor import python
from tests.chaos.plan import Blow, How, Kind, Target, fleet_of
from tests.chaos.process import ROOT, PartProcess

POLICY = "scripted:tests.chaos.policy:reply"
PARTITIONS = 4
LEASE_TTL_S = 8.0
STOP_ORDER = (Kind.WORKER, Kind.PROXY, Kind.ORCHESTRATOR, Kind.ASSEMBLER, Kind.JOINER, Kind.ENGINE)


@dataclass(slots=True)
class Fleet:
    """Use it as `async with Fleet(root, say).running()`. `root` holds everything: data, logs, journals."""

    root: Path
    say: Callable[[str], None] = print
    workers: int = 2
    proxies: int = 2
    brokers: int = 3
    run_slots: int = 6
    lease_ttl_s: float = LEASE_TTL_S
    is_one_machine: bool = True
    """Whether the proxies share a spool directory, so that one adopts what another left; else only its successor does."""
    parts: dict[str, PartProcess] = field(default_factory=dict)
    broker_restarts: int = 0
    deaths: list[str] = field(default_factory=list)
    _admin_key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    _cluster: KafkaCluster | None = None
    _engine_url: str = ""
    _model: str = ""

    @property
    def targets(self) -> tuple[Target, ...]:
        """What can be hit."""
        return fleet_of(workers=self.workers, proxies=self.proxies, brokers=self.brokers)

    @property
    def journals(self) -> Path:
        """Where the agents note what they have received."""
        return self.root / "journals"

    @property
    def engine_ledger(self) -> Path:
        """Where the engine notes what came back to it."""
        return self.root / "engine-ledger.jsonl"

    @property
    def cluster(self) -> KafkaCluster:
        """The brokers."""
        assert self._cluster is not None
        return self._cluster

    @property
    def bus_settings(self) -> BusSettings:
        """For the storm's own reading and writing."""
        return BusSettings(
            bootstrap=self.cluster.bootstrap, blob_url=f"file://{self.root}/blobs", client_id="polynya-storm"
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Fleet]:
        """Up for the block, whole and ready; stopped afterwards, whatever happens."""
        self.journals.mkdir(parents=True, exist_ok=True)
        (self.root / "tmp").mkdir(exist_ok=True)
        try:
            await self._start()
            yield self
        finally:
            await self.stop_parts()
            if self._cluster is not None:
                await asyncio.to_thread(self._cluster.stop)

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """A started bus on the fleet's brokers."""
        async with connect(self.bus_settings) as bus:
            yield bus

    async def _start(self) -> None:
        began = time.monotonic()
        self._cluster = KafkaCluster(self.root / "kafka", nodes=self.brokers, heap_mb=320)
        self._model = str(await asyncio.to_thread(ensure_tiny_model))
        engine_port = free_ports(1)[0]
        self._engine_url = f"http://127.0.0.1:{engine_port}"
        engine = self._part(Kind.ENGINE, "engine", engine=POLICY, engine_port=engine_port)
        starting = asyncio.create_task(engine.start())
        await asyncio.to_thread(self._cluster.start)
        async with TopicAdmin(self.bus_settings, deadline_s=180) as admin:
            await admin.apply(internal_topics(), partitions=PARTITIONS)
        self.say(f"fleet: {self.brokers} brokers at {self.cluster.bootstrap}")
        await starting
        async with self.bus() as bus:
            await replace_own_engine(bus, RegisteredEngine("default", self._engine_url, "sglang", self._model, "storm"))
        others = [
            *(self._part(Kind.PROXY, f"proxy-{n}") for n in range(1, self.proxies + 1)),
            *(self._part(kind, str(kind)) for kind in (Kind.ORCHESTRATOR, Kind.ASSEMBLER, Kind.JOINER)),
            *(self._part(Kind.WORKER, f"worker-{n}", worker_id=f"worker-{n}") for n in range(1, self.workers + 1)),
        ]
        await asyncio.gather(*(part.start() for part in others))
        self.say(f"fleet: up after {time.monotonic() - began:.0f} s, in {self.root}")

    def _part(self, kind: Kind, name: str, **own: object) -> PartProcess:
        state_dir = self.root / name
        settings = StackSettings(
            **{
                "state_dir": state_dir,
                "bootstrap": self.cluster.bootstrap if kind is not Kind.ENGINE else "unused:1",
                "blob_url": f"file://{self.root}/blobs",
                "engine": self._engine_url,
                "engine_kind": "sglang",
                "model": self._model,
                "admin_key": self._admin_key,
                "init_slots": self.run_slots,
                "ready_slots": self.run_slots,
                "run_slots": self.run_slots,
                "postrun_slots": self.run_slots,
                "heartbeat_s": 0.5,
                "lease_ttl_s": self.lease_ttl_s,
                "seal_grace_s": 20.0,
                "partitions": PARTITIONS,
                "proxy_id": name if kind is Kind.PROXY else "",
                "spool_dir": self.root / "spool" if self.is_one_machine else None,
                **own,
            }  # type: ignore[arg-type]  # pydantic checks them
        )
        env = {
            **settings.as_env(),
            "POLYNYA_CHAOS_LEDGER": str(self.engine_ledger),
            "POLYNYA_CACHE": str(default_cache()),
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.root / "tmp"),
        }
        part = PartProcess(
            name,
            str(kind),
            python("run", str(kind)),
            ready_file=state_dir / "run" / f"{kind}.json",
            log_file=self.root / "logs" / f"{name}.log",
            env=env,
        )
        self.parts[name] = part
        return part

    async def strike(self, blow: Blow) -> bool:
        """Do one blow and bring its victim back; False when it was left out (the victim was down, the brokers out of sync)."""
        if blow.target.kind is not Kind.BROKER:
            return await self.parts[blow.target.name].hit(blow.how, blow.back_after_s)
        if not await self.in_sync():
            return False
        node = int(blow.target.name.rpartition("-")[2])
        assert blow.how is How.KILL
        await asyncio.to_thread(self.cluster.kill, node)
        await asyncio.sleep(blow.back_after_s)
        await self.restore_broker(node)
        return True

    async def restore_broker(self, node: int) -> None:
        """Start a broker that is down and wait until it is part of the cluster again."""
        self.broker_restarts += 1
        await asyncio.to_thread(self.cluster.start_node, node)

    async def in_sync(self) -> bool:
        """Whether every partition has all its replicas in sync; another broker may be taken only then."""
        admin = AIOKafkaAdminClient(**self.bus_settings.client_options())
        try:
            async with asyncio.timeout(15):
                await admin.start()
                topics = await admin.describe_topics()
        except (KafkaError, TimeoutError):
            return False
        finally:
            await admin.close()
        partitions = [p for topic in topics for p in topic["partitions"]]
        return bool(partitions) and all(len(p["isr"]) == len(p["replicas"]) == min(3, self.brokers) for p in partitions)

    async def calm(self) -> None:
        """Everything thawed, back and ready."""
        for part in self.parts.values():
            part.thaw()
        await asyncio.gather(*(part.ready() for part in self.parts.values()))

    async def stop_parts(self) -> None:
        """Stop all parts but the brokers, in order."""
        for kind in STOP_ORDER:
            await asyncio.gather(*(p.stop() for p in self.parts.values() if p.part == kind))

    @property
    def own_deaths(self) -> list[str]:
        """Parts that ended although nobody hit them."""
        return [*self.deaths, *(death for part in self.parts.values() for death in part.deaths)]

    @property
    def restarts(self) -> int:
        """How often something was started again."""
        return self.broker_restarts + sum(part.restarts for part in self.parts.values())
