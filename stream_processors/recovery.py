"""The end of a table's recovery, in an order that loses nothing.

Faust resumes the source partitions, seeks them to their commits, and then lets the streams flow, which empties their queues: a
record that was fetched in between is gone until the next rebalance, and its successors are committed over it. Here the queues
are emptied while the sources are still paused.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery


class OrderedRecovery(Recovery):
    """Faust's recovery service with its last step in order: seek, empty the queues, only then resume the sources."""

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
        assignment = consumer.assignment()
        if assignment:
            self.log.info("Seek stream partitions to committed offsets.")
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
