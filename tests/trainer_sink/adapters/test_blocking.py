"""Plain calls on a consumer that lives in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bus import Bus
from bus.memory import MemoryBus
from schemas import ids
from schemas.records import BatchConsumed
from tests.trainer_sink.scored import whole
from trainer_sink import SinkStateError
from trainer_sink.adapters.blocking import BlockingGroups, NoGroupsError


class Log:
    """A bus with three groups of two sessions, opened in whatever loop asks; its consumed batches are kept."""

    def __init__(self) -> None:
        self.batches: list[BatchConsumed] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Bus]:
        async with MemoryBus(partitions=1) as bus:
            for name in ("a", "b", "c"):
                for scored in whole(name, 2):
                    await bus.publish(scored)
            yield bus
            for delivery in bus.records("trainer.consumed"):
                record = delivery.decode()
                self.batches += [record] if isinstance(record, BatchConsumed) else []


def groups(log: Log, **options: Any) -> BlockingGroups:
    return BlockingGroups(log.open, "trl", **{"until_end": True, **options})


def names(taken: list[Any]) -> list[str]:
    return [g.group_id for g in taken]


def test_groups_are_taken_and_committed_with_plain_calls() -> None:
    """Two steps of one group each, a skip, and what was consumed is on the log."""
    log = Log()
    with groups(log) as feed:
        first = feed.take(1)
        assert names(first) == [ids.group_id("a")]
        feed.commit(1)
        second = feed.take(2)
        feed.skip(second[1], "short")
        batch = feed.commit(2)
        assert batch.step == 2
        assert feed.consumer.counts["kept"] == 6
    assert [b.step for b in log.batches] == [1, 2]
    assert [s.group_id for s in log.batches[1].skipped] == [ids.group_id("c")]


def test_too_few_groups_are_an_error_and_stay() -> None:
    """The end of the log and a deadline are named; what had come is given out by the next call."""
    with groups(Log()) as feed:
        with pytest.raises(NoGroupsError, match="wants 5 groups and 3 came before the end of the log"):
            feed.take(5)
        assert len(feed.take(3)) == 3
    with groups(Log(), until_end=False) as feed:
        feed.take(3)
        with pytest.raises(NoGroupsError, match=r"wants 1 groups and 0 came within 0\.05 s"):
            feed.take(1, timeout_s=0.05)


def test_what_waits_for_the_rest_of_a_step_is_not_committed() -> None:
    """A commit records what the trainer got; the groups of a step that didn't fill come again with the next one."""
    log = Log()
    with groups(log) as feed:
        feed.take(1)
        with pytest.raises(NoGroupsError):
            feed.take(3)
        assert feed.commit(1).groups == [ids.group_id("a")]
        assert feed.consumer.taken == (ids.group_id("b"), ids.group_id("c"))
        state = feed.state_dict()
        assert names(feed.take(2)) == [ids.group_id("b"), ids.group_id("c")]
        assert feed.commit(2, groups=[ids.group_id("c")]).groups == [ids.group_id("c")]
    again = groups(log)
    again.load_state_dict(state)
    with again as feed:
        assert names(feed.take(2)) == [ids.group_id("b"), ids.group_id("c")]
        with pytest.raises(SinkStateError, match="before the groups are opened"):
            feed.load_state_dict(state)


def test_a_position_goes_on() -> None:
    """A state saved after one group begins with the second one."""
    with groups(Log()) as feed:
        feed.take(1)
        feed.commit(1)
        state = feed.state_dict()
    again = groups(Log())
    again.load_state_dict(state)
    with again as feed:
        assert names(feed.take(2)) == [ids.group_id("b"), ids.group_id("c")]


def test_no_thread_stays() -> None:
    """Neither after the block nor when opening fails; outside of it there is no consumer."""
    closed = groups(Log())
    with pytest.raises(SinkStateError, match="aren't open"):
        _ = closed.consumer
    with pytest.raises(ValueError, match="trainer_id"), BlockingGroups(Log().open, "not a name"):
        pass
    with groups(Log()):
        assert any(t.name == "sink-trl" for t in threading.enumerate())
    assert not any(t.name.startswith("sink-") for t in threading.enumerate())
