"""From changelogs to streams without losing a record: three holes of Faust's, closed.

While tables are read back, source partitions are paused by leaving them out of a set. (1) Faust hands that very set to the
fetching thread; when it empties it for a moment, the client takes "no partition" for "every partition", and what it then
fetches of a paused source is thrown away. (2) A seek to the commits leaves out partitions without a commit, so what was thrown
away of them stays away. (3) The sources are resumed before the streams' queues are emptied. The next commit covers what was
lost. Here each fetch gets a set of its own, every source is sought, and the order is: stop fetching, seek, empty the queues, resume.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from faust.types import TP

from bus.pace import Pace

FETCH_WAIT_MS: Final = 4000
"""How long a fetch may wait for a first record; one that comes back empty costs as much as one with records."""
LOOK_AROUND_S: Final = 1.0
"""How often the client's fetching routine looks around when nothing wakes it."""


class QuietThread(AIOKafkaConsumerThread):
    """Faust's thread of a consumer, with a client that does little while nothing happens."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Faust has no setting for either, and the client reads both when it starts.
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS  # noqa: SLF001
        consumer._consumer_timeout = LOOK_AROUND_S  # noqa: SLF001
        return consumer


class CarefulConsumer(Consumer):
    """Faust's consumer, which fetches only what it was asked for, seldom, and can seek to the beginning."""

    _pace: Pace | None = None

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return QuietThread(self, loop=self.loop, beacon=self.beacon)

    async def verify_all_partitions_active(self) -> None:
        """Our own health tells what stands still; Faust would visit each partition every few seconds, changelogs too."""

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Any:
        """Fetch records of the partitions that are active now, whatever becomes of the set meanwhile."""
        self._pace = self._pace or Pace()
        await self._pace.wait()
        snapshot = None if active_partitions is None else set(active_partitions)
        records = await super()._getmany(snapshot, timeout)
        self._pace.took(bool(records))
        return records

    async def perform_seek(self) -> None:
        """Seek every source to its commit, and those without one to their beginning (the client leaves them alone)."""
        await super().perform_seek()
        for tp in self.assignment():
            if not self._is_changelog_tp(tp) and not self._committed_offset.get(tp):
                await self.seek(tp, 0)


class OrderedRecovery(Recovery):
    """Faust's recovery service with its last step in order."""

    async def on_recovery_completed(self, generation_id: int = 0) -> None:
        """Hand over from the changelogs to the streams."""
        app = cast("Any", self.app)
        consumer = app.consumer
        await app.on_rebalance_complete.send()
        self._set_recovery_ended()
        await asyncio.gather(
            *(
                table.on_recovery_completed(self.actives_for_table[table], self.standbys_for_table[table])
                for table in self.tables.values()
            )
        )
        if app.consumer_generation_id != generation_id:
            self.log.warning("another rebalance began during recovery")
            return
        consumer.stop_flow()
        await self._wait(consumer.wait_for_stopped_flow(), timeout=app.conf.broker_request_timeout)
        assignment = consumer.assignment()
        if assignment:
            self.log.info("tables are read back; sources go to their commits")
            await self._wait(consumer.perform_seek(), timeout=app.conf.broker_request_timeout)
        self.completed.set()
        app.flow_control.resume()
        consumer.resume_partitions({tp for tp in assignment if not self._is_changelog_tp(tp)})
        consumer.resume_flow()
        await app._fetcher.maybe_start()  # noqa: SLF001 - as Faust itself does here
        self.tables.on_actives_ready()
        if not app.assignor.assigned_standbys():
            self.tables.on_standbys_ready()
        app.on_rebalance_end()
        self.log.info("Worker ready")


class OrderedTableManager(TableManager):
    """Faust's table manager with the recovery above."""

    @property
    def recovery(self) -> Recovery:
        """The recovery service of this app's tables."""
        if self._recovery is None:
            self._recovery = OrderedRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery
