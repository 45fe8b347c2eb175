"""The hand-over from changelogs to streams: the queues are emptied before a source partition can fill them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from faust.transport.drivers.aiokafka import Consumer
from faust.types import TP

from stream_processors.recovery import CarefulConsumer, OrderedRecovery


async def test_the_queues_are_emptied_before_the_sources_flow() -> None:
    """Resuming the sources first, as Faust does, loses what is fetched before the queues are emptied."""
    log: list[str] = []
    source, changelog = TP("rollout.sessions", 0), TP("app-sessions-changelog", 0)

    async def note(what: str) -> None:
        log.append(what)

    def resume_partitions(tps: set[TP]) -> None:
        assert tps == {source}
        log.append("resume sources")

    consumer = SimpleNamespace(
        assignment=lambda: {source, changelog},
        stop_flow=lambda: log.append("stop fetching"),
        wait_for_stopped_flow=lambda: note("stopped"),
        perform_seek=lambda: note("seek"),
        resume_partitions=resume_partitions,
        resume_flow=lambda: log.append("resume flow"),
    )
    app = SimpleNamespace(
        consumer=consumer,
        consumer_generation_id=7,
        conf=SimpleNamespace(broker_request_timeout=1),
        on_rebalance_complete=SimpleNamespace(send=lambda: note("rebalanced")),
        flow_control=SimpleNamespace(resume=lambda: log.append("empty queues")),
        _fetcher=SimpleNamespace(maybe_start=lambda: note("fetch")),
        assignor=SimpleNamespace(assigned_standbys=list),
        on_rebalance_end=lambda: log.append("end"),
    )
    recovery: Any = object.__new__(OrderedRecovery)

    async def wait(coro: Any, timeout: float | None = None) -> None:
        await coro

    recovery.__dict__ |= {
        "app": app,
        "tables": _Tables(),
        "log": SimpleNamespace(info=lambda *_: None, warning=lambda *_: None),
        "completed": SimpleNamespace(set=lambda: log.append("completed")),
        "_set_recovery_ended": lambda: None,
        "_wait": wait,
        "_is_changelog_tp": lambda tp: tp == changelog,
    }
    await OrderedRecovery.on_recovery_completed(recovery, 7)
    order = [what for what in log if what in {"stopped", "seek", "empty queues", "resume sources", "resume flow"}]
    assert order == ["stopped", "seek", "empty queues", "resume sources", "resume flow"]
    assert log[-1] == "end"


async def test_a_fetch_has_a_set_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emptied meanwhile, Faust's own set would make the client fetch, and lose, every partition's records."""
    asked: list[set[TP] | None] = []

    async def getmany(_: Any, partitions: set[TP] | None, timeout: float) -> dict[TP, Any]:
        asked.append(partitions)
        active.clear()
        return {}

    monkeypatch.setattr(Consumer, "_getmany", getmany)
    active = {TP("app-sessions-changelog", 0)}
    await CarefulConsumer._getmany(object.__new__(CarefulConsumer), active, 1.0)
    await CarefulConsumer._getmany(object.__new__(CarefulConsumer), None, 1.0)
    assert asked == [{TP("app-sessions-changelog", 0)}, None]


async def test_a_source_without_a_commit_is_sought_to_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own seek leaves it where it is, behind whatever was thrown away."""
    sought: list[tuple[TP, int]] = []
    fresh, known, changelog = TP("rollout.sessions", 0), TP("rollout.sessions", 1), TP("app-sessions-changelog", 0)

    async def perform_seek(_: Any) -> None:
        return None

    async def seek(_: Any, tp: TP, offset: int) -> None:
        sought.append((tp, offset))

    monkeypatch.setattr(Consumer, "perform_seek", perform_seek)
    monkeypatch.setattr(CarefulConsumer, "seek", seek)
    monkeypatch.setattr(CarefulConsumer, "assignment", lambda _: {fresh, known, changelog})
    monkeypatch.setattr(CarefulConsumer, "_is_changelog_tp", lambda _, tp: tp == changelog)
    consumer = object.__new__(CarefulConsumer)
    consumer._committed_offset = {known: 7}
    await consumer.perform_seek()
    assert sought == [(fresh, 0)]


class _Tables(dict[str, Any]):
    """An app's tables: none to recover here."""

    def on_actives_ready(self) -> None:
        """Nothing waits for it."""

    def on_standbys_ready(self) -> None:
        """Nothing waits for it."""
