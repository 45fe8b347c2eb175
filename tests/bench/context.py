"""What all measurements share: a directory, sizes, a Kafka that is started when first asked for."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bus import BusSettings
from bus.admin import TopicAdmin
from schemas.topics import TOPICS, Topic

if TYPE_CHECKING:
    from compose.kafka import KafkaCluster
    from tests.bench.stack import BenchStack

PARTITIONS = 4
"""Of every topic: enough for keys to part, few enough to be made in a moment."""


@dataclass(slots=True)
class Bench:
    """One run. `quick` asks for sizes that show whether it works, not what it costs."""

    work_dir: Path
    quick: bool = False
    say: Callable[[str], None] = print
    _kafka: KafkaCluster | None = field(default=None, init=False)
    _stack: BenchStack | None = field(default=None, init=False)
    _exits: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)

    def size(self, full: int, quick: int) -> int:
        """A count: the full one, or the one of a quick run."""
        return quick if self.quick else full

    def model_dir(self) -> Path:
        """The model directory whose tokenizer the proxy and the engines use."""
        from compose.cpu_engine.tiny_model import ensure_tiny_model

        return ensure_tiny_model()

    async def kafka(self) -> KafkaCluster:
        """A real Kafka of this run alone."""
        if self._kafka is None:
            from compose.kafka import KafkaCluster

            self.say("starting Kafka")
            self._kafka = await asyncio.to_thread(KafkaCluster(self.work_dir / "kafka").start)
        return self._kafka

    @asynccontextmanager
    async def topics(self, name: str, extra: tuple[Topic, ...] = ()) -> AsyncIterator[BusSettings]:
        """Settings of a bus whose topics are fresh, and gone afterwards."""
        kafka = await self.kafka()
        settings = BusSettings(
            bootstrap=kafka.bootstrap,
            topic_prefix=f"bench-{name}-{uuid.uuid4().hex[:8]}.",
            blob_url=(self.work_dir / "blobs").as_uri(),
            client_id=f"bench-{name}",
        )
        async with TopicAdmin(settings) as admin:
            # Without the dead letters, for which nothing here has a use: a hundred partitions fewer to make.
            await admin.ensure([replace(topic, partitions=PARTITIONS) for topic in (*TOPICS.values(), *extra)])
            try:
                yield settings
            finally:
                await admin.delete_all()

    async def stack(self) -> BenchStack:
        """A whole running stack of this run alone, with a Kafka of its own."""
        if self._stack is None:
            from tests.bench.stack import running_stack

            await self._stop_kafka()  # two would weigh on the machine
            self.say("starting a whole stack")
            self._stack = await self._exits.enter_async_context(running_stack(self.work_dir / "stack"))
        return self._stack

    async def close(self) -> None:
        """Stop what was started."""
        await self._exits.aclose()
        self._stack = None
        await self._stop_kafka()

    async def _stop_kafka(self) -> None:
        if self._kafka is not None:
            await asyncio.to_thread(self._kafka.stop)
            self._kafka = None
