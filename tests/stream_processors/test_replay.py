"""Replay: the same trajectories as the assembler's, another builder's from the same calls, and a stop that changes nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest

from bus import Delivery
from bus.archive import ArchiveLog, archive
from bus.memory import MemoryBus
from schemas import ids
from schemas.codec import encode
from schemas.records import Record, SessionEvent, SessionOpened, SessionSealed, SessionSpec, Trajectory
from schemas.records import SessionEventType as Fact
from stream_processors import replay as replay_module
from stream_processors.assembler.app import Assembler
from stream_processors.builders import UnknownBuilderError
from stream_processors.replay import Progress, Wanted, replay
from tests.stream_processors.driver import Driven
from tests.stream_processors.helpers import E, call, delivered, row_of

USER = {"role": "user", "content": "u"}
REPLY = {"role": "assistant", "content": "a"}


class Kept:
    """An output that keeps what was put since the last checkpoint apart, as a real one does."""

    def __init__(self, saved: list[Trajectory] | None = None) -> None:
        self.saved = saved or []
        self.open: list[Trajectory] = []
        self.checkpoint: dict[str, Any] | None = None

    async def put(self, trajectory: Trajectory) -> None:
        self.open.append(trajectory)

    async def save(self, checkpoint: Mapping[str, Any]) -> None:
        self.saved += self.open
        self.open = []
        self.checkpoint = json.loads(json.dumps(checkpoint))


def session(n: int, *, is_ended: bool = True, attempt: int = 1) -> list[Record]:
    """A session of three calls, the second with a re-tokenised history; opened at second n."""
    name = f"session-{n}"
    lease = ids.lease_id(name, attempt)
    place = {"session_id": name, "lease_id": lease}
    spec = SessionSpec(task_id="t", group_id=f"g{n}", policy_id="policy")
    facts: list[Record] = [
        SessionEvent(**place, type=Fact.GRANTED, attempt=attempt, spec=spec),
        SessionOpened(**place, attempt=attempt, writer=1, spec=spec, opened_at=n * 1000),
        *delivered(
            call(1, [1, n], [10, 11, E], lease=lease, session=name, messages=[USER], text="a"),
            call(2, [1, n, 12, E, 50], [20, E], lease=lease, session=name, messages=[USER, REPLY, USER]),
            call(3, [1, n, 12, E, 50, 20, E, 60], [30, E], lease=lease, session=name),
        ),
        SessionSealed(**place, attempt=attempt, writer=1, last_seq=3),
    ]
    if is_ended:
        facts.append(SessionEvent(**place, type=Fact.SEALED, attempt=attempt, writers=[1]))
    return facts


async def play(bus: MemoryBus, *sessions: list[Record]) -> list[Trajectory]:
    """Put sessions on the log, one fact of each in turn; what the assembler makes of them, by session."""
    for step in range(max(map(len, sessions))):
        for facts in sessions:
            if step < len(facts):
                await bus.publish(facts[step])
    await Driven(bus, Assembler).catch_up()
    return [d.decode() for d in bus.records("trajectory.built")]  # type: ignore[misc]


def content(trajectories: list[Trajectory]) -> dict[str, bytes]:
    """Everything but the time of building, by session."""
    return {t.session_id: encode(changed(t, built_at=0)).value for t in trajectories}


async def test_the_same_builder_gives_what_the_assembler_gave(memory_bus: MemoryBus) -> None:
    """Trajectory ids, traces, states, digests."""
    live = await play(memory_bus, *(session(n) for n in range(8)))
    output = Kept()
    progress = await replay(memory_bus, Wanted(), output)
    assert content(output.saved) == content(live)
    assert (progress.trajectories, progress.traces, progress.states["trained"]) == (8, 16, 24)
    assert [t.traces[0].is_off_context for t in output.saved] == [False] * 8


@pytest.mark.parametrize(
    ("builder", "options", "rows"),
    [
        ("per_request", None, 3),
        ("prefix_merging", {"drift": "splice"}, 1),
        ("", {"drift": "splice"}, 1),
    ],
)
async def test_another_builder_and_another_drift(
    memory_bus: MemoryBus, builder: str, options: dict[str, str] | None, rows: int
) -> None:
    """The same calls, other trajectories under other ids; the session's own rule where none is named."""
    (live,) = await play(memory_bus, session(1))
    output = Kept()
    await replay(memory_bus, Wanted(builder, options), output)
    (trajectory,) = output.saved
    assert len(trajectory.traces) == rows
    assert trajectory.trajectory_id != live.trajectory_id
    assert trajectory.builder == (builder or "prefix_merging")
    if options:
        assert row_of(trajectory.traces[0])[1] == [10, 11, E, 50, 20, E, 60, 30, E]
        assert trajectory.traces[0].is_off_context


async def test_an_archive_gives_what_the_log_gives(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """Read from files, the same trajectories in the same order."""
    await play(memory_bus, *(session(n) for n in range(6)))
    await archive(memory_bus, tmp_path)
    from_log, from_files = Kept(), Kept()
    await replay(memory_bus, Wanted(), from_log)
    await replay(ArchiveLog(tmp_path), Wanted(), from_files)
    assert from_files.saved == from_log.saved


class Cut:
    """A log that breaks after so many records."""

    def __init__(self, bus: MemoryBus, after: int) -> None:
        self.bus = bus
        self.left = after

    async def end_offsets(self, topic: str) -> dict[int, int]:
        return await self.bus.end_offsets(topic)

    async def tail(self, *args: Any, **options: Any) -> AsyncGenerator[Delivery, None]:
        async for delivery in self.bus.tail(*args, **options):
            if not self.left:
                raise ConnectionError("cut")
            self.left -= 1
            yield delivery


@pytest.mark.parametrize("after", range(5, 100, 9))
async def test_stopped_anywhere_it_goes_on_from_its_checkpoint(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The output and the counts are those of a replay that never stopped."""
    monkeypatch.setattr(replay_module, "CHECKPOINT_RECORDS", 4)
    await play(memory_bus, *(session(n) for n in range(7)), session(8, is_ended=False))
    whole = Kept()
    expected = await replay(memory_bus, Wanted(), whole)
    first = Kept()
    with contextlib.suppress(ConnectionError):
        await replay(Cut(memory_bus, after), Wanted(), first)
    second = Kept(first.saved)
    progress = await replay(memory_bus, Wanted(), second, checkpoint=first.checkpoint)
    assert second.saved == whole.saved
    assert (progress.trajectories, progress.states, progress.skipped) == (
        expected.trajectories,
        expected.states,
        expected.skipped,
    )


async def test_a_span_is_of_openings(memory_bus: MemoryBus) -> None:
    """Sessions opened in [from, to), whole; the others are counted under what they are."""
    await play(memory_bus, *(session(n) for n in range(1, 7)))
    output = Kept()
    progress = await replay(memory_bus, Wanted(from_ms=3000, to_ms=5000), output)
    assert {t.session_id for t in output.saved} == {"session-3", "session-4"}
    assert progress.skipped == {"began_earlier": 2, "began_later": 2}
    only = Kept()
    await replay(memory_bus, Wanted(sessions=frozenset({"session-2"})), only)
    assert [t.session_id for t in only.saved] == ["session-2"]


async def test_what_still_runs_is_counted_not_told(memory_bus: MemoryBus) -> None:
    """The orchestrator hasn't ended it: its writer's seal isn't the end, another writer may follow."""
    await play(memory_bus, session(1), session(2, is_ended=False))
    output = Kept()
    progress = await replay(memory_bus, Wanted(), output)
    assert [t.session_id for t in output.saved] == ["session-1"]
    assert progress.skipped == {"still_open": 1}


async def test_holes_stay_holes_and_what_came_late_is_in(memory_bus: MemoryBus) -> None:
    """A call that the live assembler met too late is in its place; one that never came is named."""
    facts = session(1)
    late = facts.pop(6)  # the third call
    overdue = SessionEvent(session_id="session-1", lease_id=ids.lease_id("session-1", 1), type=Fact.SEAL_OVERDUE)
    driven = Driven(memory_bus, Assembler)
    for fact in [*facts, overdue, late]:
        await memory_bus.publish(fact)
        await driven.catch_up()
    live = [d.decode() for d in memory_bus.records("trajectory.built")]
    assert [t.revision for t in live if isinstance(t, Trajectory)] == [1, 2]
    output = Kept()
    await replay(memory_bus, Wanted(), output)
    (trajectory,) = output.saved
    assert (trajectory.counts.calls, trajectory.capture_incomplete) == (3, [])
    assert isinstance(live[-1], Trajectory)
    assert trajectory.content_digest == live[-1].content_digest
    async with MemoryBus(partitions=1) as other:
        await play(other, facts)
        holed = Kept()
        await replay(other, Wanted(), holed)
        assert holed.saved[0].capture_incomplete[0].after_seq == 2


def two_writers() -> tuple[list[Record], list[Record], list[Record]]:
    """A lease that a second proxy took over: the session's events, and the facts of each writer in its own order."""
    granted, opened, *first, sealed = session(1)[:4] + session(1)[-1:]
    place = {"session_id": "session-1", "lease_id": ids.lease_id("session-1", 1)}
    assert isinstance(sealed, SessionEvent)
    assert isinstance(opened, SessionOpened)
    second = delivered(call(1, [1, 1, 10, 11, E, 50], [30, E], writer=2, lease=place["lease_id"], session="session-1"))
    return (
        [granted, changed(sealed, writers=[1, 2])],
        [opened, *first, SessionSealed(**place, writer=1, last_seq=1)],
        [changed(opened, writer=2, opened_at=9000), *second, SessionSealed(**place, writer=2, last_seq=1)],
    )


@pytest.mark.parametrize("span", [None, (1000, 2000)], ids=["all", "span"])
async def test_two_writers_in_any_interleaving_give_the_same_rows(span: tuple[int, int] | None) -> None:
    """Also when the first one's spool came last, so that the log begins with the second's opening."""
    events, first, second = two_writers()
    wanted = Wanted() if span is None else Wanted(from_ms=span[0], to_ms=span[1])
    found: list[dict[str, bytes]] = []
    for places in itertools.combinations(range(8), 4):
        one, other = iter(first), iter(second)
        async with MemoryBus(partitions=1) as bus:
            for fact in [*events, *(next(one) if n in places else next(other) for n in range(8))]:
                await bus.publish(fact)
            output = Kept()
            progress = await replay(bus, wanted, output)
            assert progress.skipped == {}
            found.append(content(output.saved))
    assert all(one == found[0] for one in found)
    assert progress.states == {"trained": 2, "context": 0}
    assert (progress.trajectories, progress.traces) == (1, 1)


async def test_what_retention_took_the_beginning_of_is_not_told(memory_bus: MemoryBus) -> None:
    """A lease whose opening and first call are gone has a hole at its front, sealed or still running."""
    await play(memory_bus, [*session(1)[:1], *session(1)[3:]], [*session(2, is_ended=False)[:1], *session(2)[3:8]])
    output = Kept()
    progress = await replay(memory_bus, Wanted(), output)
    assert (output.saved, progress.skipped) == ([], {"beginning_missing": 2})


async def test_a_span_minds_that_clocks_differ(memory_bus: MemoryBus) -> None:
    """The proxy's clock is ahead of the log's: its session's opening stands there before the span begins."""
    await play(memory_bus, session(1))
    (stamp, *_) = [d.timestamp_ms for d in memory_bus.records("capture.completions")]
    moved = [changed(f, opened_at=stamp + 5000) if isinstance(f, SessionOpened) else f for f in session(2)]
    await play(memory_bus, moved)
    output = Kept()
    await replay(memory_bus, Wanted(from_ms=stamp + 4000), output)
    assert [t.session_id for t in output.saved] == ["session-2"]


async def test_b130_a_superseded_attempt_is_never_trained(memory_bus: MemoryBus) -> None:
    """B130 and T80: the calls of an attempt that was followed by another one are counted, in a trajectory of their own."""
    first, second = session(1), session(1, attempt=2)
    await play(memory_bus, [*first, *second])
    output = Kept()
    await replay(memory_bus, Wanted(), output)
    loser, winner = output.saved
    assert loser.counts.untrainable == {"superseded_attempt": 3}
    assert (winner.attempt, winner.counts.trained) == (2, 3)


async def test_without_the_sessions_topic_the_writers_seals_end_a_lease(tmp_path: Path) -> None:
    """An archive of completions alone still gives trajectories."""
    async with MemoryBus(partitions=2) as bus:
        await play(bus, session(1), session(2))
        await archive(bus, tmp_path, topics=["capture.completions"])
    output = Kept()
    await replay(ArchiveLog(tmp_path), Wanted(), output)
    assert sorted(t.session_id for t in output.saved) == ["session-1", "session-2"]


async def test_poison_is_counted(memory_bus: MemoryBus) -> None:
    """A record that can't be decoded stops nothing."""
    await memory_bus.publish_raw("capture.completions", b"session-1", b"no avro")
    await play(memory_bus, session(1))
    output = Kept()
    progress = await replay(memory_bus, Wanted(), output)
    assert (len(output.saved), progress.skipped) == (1, {"unreadable_record": 1})


async def test_unknown_builders_and_options_are_refused_before_reading() -> None:
    """Nothing is read, nothing is written."""
    for wanted in (Wanted("nonsense"), Wanted("per_request", {"drift": "splice"}), Wanted(options={"x": 1})):
        with pytest.raises(UnknownBuilderError):
            await replay(None, wanted, Kept())  # type: ignore[arg-type]


async def test_progress_is_told(memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each checkpoint: partition, offset, end, counts."""
    monkeypatch.setattr(replay_module, "CHECKPOINT_RECORDS", 2)
    await play(memory_bus, session(1))
    seen: list[tuple[int, int]] = []

    def note(progress: Progress) -> None:
        seen.append((progress.offset, progress.end))

    await replay(memory_bus, Wanted(), Kept(), on_progress=note)
    assert (8, 8) in seen
    assert [offset for offset, end in seen if end == 8] == [2, 4, 6, 8, 8]
    assert all(offset <= end for offset, end in seen), "an empty partition isn't at the last one's offset"
