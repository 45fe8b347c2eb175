"""Waiting for the trajectory of a session's lease, for evaluators that look at it."""

from __future__ import annotations

from contextlib import aclosing

from bus.deliveries import Start
from bus.protocol import EventLog
from schemas.records import Trajectory

TOPIC = "trajectory.built"

BACK_MS = 600_000
"""Clocks of workers and processors may differ: the log is read from so long before the lease was granted."""


async def wait_for_trajectory(log: EventLog, session_id: str, lease_id: str, *, since: Start) -> Trajectory:
    """The lease's trajectory, as soon as it is on the log; waits without an end, so give it a deadline. Raises as `tail`."""
    partition = await log.partition_for(TOPIC, session_id)
    async with aclosing(log.tail([TOPIC], start=since, partitions=[partition])) as deliveries:
        async for delivery in deliveries:
            # Its headers tell whose it is: the values of others, which may be large, stay undecoded.
            if delivery.key != session_id.encode():
                continue
            record = delivery.decode()
            if isinstance(record, Trajectory) and record.lease_id == lease_id:
                return record
    raise RuntimeError("a reader without an end has ended")
