"""The writer of a policy's weights, against engines that only keep what they are told."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bus.memory import MemoryBus
from schemas.records import PolicyEvent, PolicyEventType
from tests.trainer_sink.policies.fake_engine import FakeEngine, serving
from tests.trainer_sink.scored import POLICY
from trainer_sink.policies import (
    Deadlines,
    EnginesUnfitError,
    PolicyError,
    PolicyWriter,
    PushFailedError,
    SupersededError,
)

EXCHANGE = ["/pause_generation", "/update_weights_from_disk", "/flush_cache", "/continue_generation", "/model_info"]
PUSHED = [PolicyEventType.PAUSED, PolicyEventType.PUBLISHED, PolicyEventType.RESUMED]
UPDATE = "/update_weights_from_disk"
DEADLINE_S = 20.0


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory with weights."""
    return saved(tmp_path, "one")


def saved(root: Path, name: str) -> Path:
    """Another checkpoint."""
    path = root / name
    path.mkdir()
    (path / "model.safetensors").write_text(name)
    return path


async def tell(
    bus: MemoryBus, kind: PolicyEventType, engine: FakeEngine, policy: str = POLICY, by: str = "cpu"
) -> None:
    """An engine comes or goes."""
    await bus.publish(PolicyEvent(policy_id=policy, type=kind, engine_url=engine.url, engine_kind=by))


async def events(bus: MemoryBus) -> list[PolicyEvent]:
    """What trainers said on the timeline."""
    found = [d.decode() async for d in bus.tail(["policy.timeline"], until_end=True)]
    return [e for e in found if isinstance(e, PolicyEvent) and e.trainer_id]


async def test_a_push_reaches_the_engine_and_is_published(bus: MemoryBus, engine: FakeEngine, checkpoint: Path) -> None:
    """Pause, load, forget old keys and values, go on; the timeline says who published what, from where, after what."""
    async with PolicyWriter(bus, POLICY, "t") as writer:
        assert writer.version == "0"
        assert await writer.push(checkpoint, weights_digest="d1") == "1"
        assert await writer.push(checkpoint, weights_digest="d2") == "2"
        assert writer.version == "2"
        assert [(r.version, r.model_path, r.problem) for r in await writer.engines()] == [("2", str(checkpoint), "")]
    assert engine.asked[:5] == EXCHANGE
    assert (engine.version, engine.path, engine.is_paused) == ("2", str(checkpoint), False)
    told = await events(bus)
    assert [e.type for e in told] == [PolicyEventType.CLAIMED, *PUSHED, *PUSHED]
    published = [e for e in told if e.type is PolicyEventType.PUBLISHED]
    assert [(e.version, e.parent_version, e.weights_digest) for e in published] == [("1", "0", "d1"), ("2", "1", "d2")]
    assert {(e.trainer_epoch, e.weights_path) for e in published} == {(writer.epoch, str(checkpoint))}


async def test_a_later_claim_ends_an_earlier_writer(bus: MemoryBus, engine: FakeEngine, checkpoint: Path) -> None:
    """The earlier one is refused before it touches an engine, and is told by whom; the later one counts on."""
    async with PolicyWriter(bus, POLICY, "old") as old:
        await old.push(checkpoint)
        async with PolicyWriter(bus, POLICY, "new") as new:
            assert new.epoch > old.epoch
            assert new.version == "1"
            before, told = list(engine.asked), len(await events(bus))
            with pytest.raises(SupersededError, match="trainer new claimed it") as refused:
                await old.push(checkpoint)
            assert (refused.value.by, refused.value.epoch, refused.value.reached) == ("new", new.epoch, ())
            assert engine.asked == before
            assert len(await events(bus)) == told
            assert await new.push(checkpoint) == "2"


async def test_a_trainer_that_starts_anew_counts_on(bus: MemoryBus, engine: FakeEngine, checkpoint: Path) -> None:
    """Restored from an old checkpoint, under the same name: no number is used again, and its earlier self is out."""
    async with PolicyWriter(bus, POLICY, "t") as first:
        assert [await first.push(checkpoint) for _ in range(2)] == ["1", "2"]
        async with PolicyWriter(bus, POLICY, "t") as second:
            assert await second.push(checkpoint) == "3"
            with pytest.raises(SupersededError):
                await first.push(checkpoint)
    assert engine.version == "3"


async def test_one_engine_of_several_fails(bus: MemoryBus, engine: FakeEngine, checkpoint: Path) -> None:
    """It is named, all go on generating, nothing is published; the next try has the same number and skips those that are done."""
    async with serving(FakeEngine(refuses={UPDATE: 400})) as bad, PolicyWriter(bus, POLICY, "t") as writer:
        await tell(bus, PolicyEventType.ENGINE_ADDED, bad)
        with pytest.raises(PushFailedError, match="isn't on every engine") as failed:
            await writer.push(checkpoint)
        assert list(failed.value.failed) == [bad.url]
        assert (failed.value.version, failed.value.done) == ("1", (engine.url,))
        assert not bad.is_paused
        assert not engine.is_paused
        assert [e.type for e in await events(bus)][1:] == [PolicyEventType.PAUSED, PolicyEventType.RESUMED]
        bad.refuses.clear()
        engine.asked.clear()
        assert await writer.push(checkpoint) == "1"
        assert engine.asked == ["/model_info"]
    assert (engine.version, bad.version) == ("1", "1")


async def test_other_weights_after_a_failed_push_have_another_number(
    bus: MemoryBus, engine: FakeEngine, tmp_path: Path
) -> None:
    """A number names one set of weights for ever, also one that only some engines had; and a restarted engine gets it again."""
    async with serving(FakeEngine(refuses={UPDATE: 400})) as bad, PolicyWriter(bus, POLICY, "t") as writer:
        await tell(bus, PolicyEventType.ENGINE_ADDED, bad)
        with pytest.raises(PushFailedError):
            await writer.push(saved(tmp_path, "one"))
        bad.refuses.clear()
        engine.refuses[UPDATE] = 500
        with pytest.raises(PushFailedError) as failed:
            await writer.push(saved(tmp_path, "two"))
        assert (failed.value.version, list(failed.value.failed)) == ("2", [engine.url])
        engine.refuses.clear()
        bad.version = "default"  # it crashed and came back meanwhile
        assert await writer.push(tmp_path / "two") == "2"
        assert (engine.version, bad.version) == ("2", "2")


async def test_an_engine_that_says_yes_and_serves_another_version(
    bus: MemoryBus, engine: FakeEngine, checkpoint: Path
) -> None:
    """What it reports counts, not what it answered."""
    engine.is_deaf = True
    async with PolicyWriter(bus, POLICY, "t") as writer:
        with pytest.raises(PushFailedError, match="says that it serves version 'default' after it took '1'"):
            await writer.push(checkpoint)


@pytest.mark.parametrize("route", EXCHANGE)
async def test_every_step_has_a_deadline(bus: MemoryBus, engine: FakeEngine, checkpoint: Path, route: str) -> None:
    """An engine that stops answering is named, and told to go on all the same; emptying the cache alone may fail."""
    engine.hangs[route] = asyncio.Event()
    short = Deadlines(pause_s=0.2, load_s=0.2, continue_s=0.2, info_s=0.2)
    async with PolicyWriter(bus, POLICY, "t", deadlines=short) as writer, asyncio.timeout(DEADLINE_S):
        if route == "/flush_cache":
            assert await writer.push(checkpoint) == "1"
        else:
            with pytest.raises(PushFailedError, match=f"{route} didn't answer within 0.2 s"):
                await writer.push(checkpoint)
    assert "/continue_generation" in engine.asked


async def test_an_engine_that_stays_paused_is_told_of(bus: MemoryBus, engine: FakeEngine, checkpoint: Path) -> None:
    """With what to type."""
    engine.refuses["/continue_generation"] = 500
    async with PolicyWriter(bus, POLICY, "t") as writer:
        with pytest.raises(PushFailedError, match=r"it may still be paused \(curl -X POST http"):
            await writer.push(checkpoint)
    assert engine.asked.count("/continue_generation") > 1


async def test_a_cancelled_push_leaves_no_engine_paused(bus: MemoryBus, engine: FakeEngine, checkpoint: Path) -> None:
    """A trainer that is interrupted in the middle."""
    engine.hangs[UPDATE] = asyncio.Event()
    engine.reached[UPDATE] = asyncio.Event()
    async with asyncio.timeout(DEADLINE_S), PolicyWriter(bus, POLICY, "t") as writer:
        pushing = asyncio.create_task(writer.push(checkpoint))
        await engine.reached[UPDATE].wait()
        assert engine.is_paused
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing
    assert not engine.is_paused


async def test_a_claim_while_engines_load_is_found_out(bus: MemoryBus, engine: FakeEngine, checkpoint: Path) -> None:
    """Too late to take back: the error names the engine and the version, which stays unpublished; the new owner puts it right."""
    async with PolicyWriter(bus, POLICY, "old") as old:
        await old.push(checkpoint)
    async with PolicyWriter(bus, POLICY, "old") as old, asyncio.timeout(DEADLINE_S):
        gate = engine.hangs[UPDATE] = asyncio.Event()
        engine.reached[UPDATE] = asyncio.Event()
        pushing = asyncio.create_task(old.push(saved(checkpoint.parent, "late")))
        await engine.reached[UPDATE].wait()
        async with PolicyWriter(bus, POLICY, "new") as new:
            gate.set()
            with pytest.raises(SupersededError, match="version 2, which stays unpublished, is on http") as late:
                await pushing
            assert (late.value.version, late.value.reached) == ("2", (engine.url,))
            engine.hangs.clear()
            assert engine.version == "2"
            assert await new.sync() == [engine.url]
            assert (engine.version, engine.path) == ("1", str(checkpoint))
            assert await new.push(checkpoint) == "3"
    told = await events(bus)
    assert [e.version for e in told if e.type is PolicyEventType.PUBLISHED] == ["1", "3"]
    assert any("superseded by new" in e.reason for e in told if e.type is PolicyEventType.RESUMED)


async def test_sync_brings_up_what_is_behind(bus: MemoryBus, engine: FakeEngine, checkpoint: Path) -> None:
    """An engine that came later gets the published version, by a writer that may know no more than the timeline."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(PolicyWriter(bus, POLICY, "t"))
        with pytest.raises(PolicyError, match="no published checkpoint"):
            await first.sync()
        await first.push(checkpoint)
        later = await stack.enter_async_context(serving(FakeEngine()))
        await tell(bus, PolicyEventType.ENGINE_ADDED, later)
        again = await stack.enter_async_context(PolicyWriter(bus, POLICY, "t"))
        engine.asked.clear()
        assert await again.sync() == [later.url]
        assert (later.version, later.path) == ("1", str(checkpoint))
        assert set(engine.asked) == {"/model_info"}
        assert await again.sync() == []
        assert await again.push(checkpoint) == "2"


async def test_engines_that_cant_be_pushed_to(bus: MemoryBus, checkpoint: Path) -> None:
    """None at all, another kind, or one that another policy uses: refused before anything is told or touched."""
    async with serving(FakeEngine()) as engine, PolicyWriter(bus, POLICY, "t") as writer:
        with pytest.raises(EnginesUnfitError, match=f"polynya engine add URL --policy {POLICY}"):
            await writer.push(checkpoint)
        await tell(bus, PolicyEventType.ENGINE_ADDED, engine, by="vllm")
        with pytest.raises(EnginesUnfitError, match="of kind vllm"):
            await writer.push(checkpoint)
        await tell(bus, PolicyEventType.ENGINE_REMOVED, engine)
        await bus.publish(
            PolicyEvent(
                policy_id=POLICY, type=PolicyEventType.ENGINE_ADDED, engine_url=engine.url, engine_kind="cpu", at=1
            )
        )
        await tell(bus, PolicyEventType.ENGINE_ADDED, engine, policy="q")
        with pytest.raises(EnginesUnfitError, match="serves policy q, too"):
            await writer.push(checkpoint)
        assert engine.asked == []
        assert [e.type for e in await events(bus)] == [PolicyEventType.CLAIMED]


async def test_an_odd_event_on_the_timeline_stops_no_writer(
    bus: MemoryBus, engine: FakeEngine, checkpoint: Path
) -> None:
    """The log is never cut: an address that is none fails that engine's part alone, a number without end is no version to count from."""
    async with PolicyWriter(bus, POLICY, "t") as writer:
        assert await writer.push(checkpoint) == "1"
    odd = FakeEngine(url="http://host:port")
    await tell(bus, PolicyEventType.ENGINE_ADDED, odd)
    await bus.publish(PolicyEvent(policy_id=POLICY, type=PolicyEventType.RESUMED, version="9" * 5000))
    async with PolicyWriter(bus, POLICY, "t") as writer:
        assert {one.url: bool(one.problem) for one in await writer.engines()} == {engine.url: False, odd.url: True}
        with pytest.raises(PushFailedError, match="port") as failed:
            await writer.push(checkpoint)
        assert (list(failed.value.failed), failed.value.done) == ([odd.url], (engine.url,))
        await tell(bus, PolicyEventType.ENGINE_REMOVED, odd)
        assert await writer.push(checkpoint) == "2"


async def test_engines_by_name_and_with_a_key(bus: MemoryBus, checkpoint: Path) -> None:
    """A list takes the timeline's place; a missing key is said."""
    async with serving(FakeEngine(key="k")) as engine:
        async with PolicyWriter(bus, POLICY, "t", engines=[engine.url + "/"]) as writer:
            with pytest.raises(PushFailedError, match="wants its admin key"):
                await writer.push(checkpoint)
        async with PolicyWriter(bus, POLICY, "t", engines=[engine.url], api_key="k") as writer:
            assert await writer.push(checkpoint) == "2"
    assert engine.version == "2"


async def test_requests_that_keep_their_keys_and_values(bus: MemoryBus, engine: FakeEngine, checkpoint: Path) -> None:
    """Paused in place the cache can't be emptied while requests run: the push succeeds all the same."""
    engine.is_busy = True
    async with PolicyWriter(bus, POLICY, "t", pause_mode="in_place") as writer:
        assert await writer.push(checkpoint) == "1"
    assert engine.version == "1"


async def test_kafka_fails_between_the_engines_and_the_timeline(
    bus: MemoryBus, engine: FakeEngine, checkpoint: Path
) -> None:
    """The next try publishes under the same number without loading anything again."""
    async with PolicyWriter(bus, POLICY, "t") as writer:
        told = bus.publish

        async def refusing(record: PolicyEvent, **options: object) -> object:
            if record.type is PolicyEventType.PUBLISHED:
                raise OSError("no way out")
            return await told(record)

        bus.publish = refusing  # type: ignore[assignment,method-assign]
        with pytest.raises(OSError, match="no way out"):
            await writer.push(checkpoint)
        bus.publish = told  # type: ignore[method-assign]
        engine.asked.clear()
        assert await writer.push(checkpoint) == "1"
        assert engine.asked == ["/model_info"]


async def test_a_writer_is_used_once_and_as_a_context(bus: MemoryBus, engine: FakeEngine, checkpoint: Path) -> None:
    """A claim belongs to one life; '*' isn't one policy; without a checkpoint nothing is told."""
    with pytest.raises(ValueError, match="no policy that can be trained"):
        PolicyWriter(bus, "*", "t")
    writer = PolicyWriter(bus, POLICY, "t")
    with pytest.raises(PolicyError, match="async with"):
        await writer.push(checkpoint)
    async with writer:
        with pytest.raises(PolicyError, match="there is no checkpoint"):
            await writer.push(checkpoint / "nowhere")
    with pytest.raises(PolicyError, match="in use already, or was"):
        await writer.__aenter__()
    assert engine.asked == []
