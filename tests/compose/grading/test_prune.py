"""The sweep of the blob store: what the log refers to stays, what nobody refers to goes, once it is old."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from bus.blobs import LocalBlobStore, RemoteBlobStore, open_store
from bus.memory import MemoryBus
from compose.grading.prune import PruneReport, prune
from schemas.records import Reward, SessionEvent, SessionEventType, Trace, Trajectory
from schemas.topics import TOPICS
from stage_workers.evaluators import Artifacts

HOUR_MS = 3_600_000
NOW = int(time.time() * 1000)


@pytest.fixture
def store(tmp_path: Path) -> LocalBlobStore:
    found = open_store(tmp_path.as_uri())
    assert isinstance(found, LocalBlobStore)
    return found


@pytest.fixture
def bus(tmp_path: Path) -> MemoryBus:
    return MemoryBus(partitions=2, blob_url=tmp_path.as_uri())


def age(tmp_path: Path, url: str, hours: float) -> Path:
    """Makes a blob that old."""
    path = tmp_path / "/".join(url.split("/")[-2:])
    then = NOW / 1000 - hours * 3600
    os.utime(path, (then, then))
    return path


async def swept(bus: MemoryBus, store: LocalBlobStore, hours: float = 2, **more: Any) -> PruneReport:
    return await prune(bus, store, list(TOPICS), older_than_s=hours * 3600, now_ms=NOW, **more)


async def test_what_nobody_refers_to(bus: MemoryBus, store: LocalBlobStore, tmp_path: Path) -> None:
    """Old ones go, with their folder; young ones stay; a dry run only counts."""
    async with bus:
        old = age(tmp_path, await store.put("s1", b"old"), 3)
        young = age(tmp_path, await store.put("s2", b"young"), 1.5)
        dry = await swept(bus, store, is_dry=True)
        assert (dry.blobs, dry.removed, dry.removed_bytes, dry.young) == (2, 1, 3, 1)
        assert old.exists()
        report = await swept(bus, store)
        assert (report.removed, report.young, report.kept) == (1, 1, 0)
        assert (old.exists(), old.parent.exists(), young.exists()) == (False, False, True)


async def test_claim_checks_stay(bus: MemoryBus, store: LocalBlobStore, tmp_path: Path) -> None:
    """A large record's value is there for as long as the record is, however old it is; also one quoted in a dead letter."""
    async with bus:
        large = Trajectory(session_id="s1", traces=[Trace(prompt_ids=b"1234" * 100_000)])
        await bus.publish(large)
        (delivery,) = bus.records("trajectory.built")
        quoted = await store.put("s2", b"quoted")
        await bus.publish_raw("capture.rejections", b"k", f'{{"url": "{quoted}"}}'.encode())
        kept = [age(tmp_path, delivery.headers["claim_check"].decode(), 900), age(tmp_path, quoted, 900)]
        report = await swept(bus, store)
        assert (report.kept, report.removed) == (2, 0)
        assert all(path.exists() for path in kept)


@pytest.mark.parametrize(
    ("kept_until", "stays"),
    [(NOW + HOUR_MS, True), (0, True), (NOW - HOUR_MS, False)],
    ids=["not yet", "no date", "passed"],
)
async def test_artifacts_have_a_date(
    bus: MemoryBus, store: LocalBlobStore, tmp_path: Path, kept_until: int, stays: bool
) -> None:
    """A live record names one: it stays until its date, and goes after it."""
    async with bus:
        artifacts = Artifacts(store, "s1", kept_until=kept_until)
        await artifacts.keep("patch.diff", b"a patch")
        details = {"artifacts": artifacts.details}
        await bus.publish(SessionEvent(session_id="s1", type=SessionEventType.GRADED, details=details))
        path = age(tmp_path, artifacts.details["patch.diff"]["url"], 900)
        await swept(bus, store)
        assert path.exists() is stays


async def test_the_latest_date_counts(bus: MemoryBus, store: LocalBlobStore, tmp_path: Path) -> None:
    """The same content kept by two gradings stays for the longer of the two."""
    async with bus:
        for until in (NOW + HOUR_MS, NOW - HOUR_MS):
            artifacts = Artifacts(store, "s1", kept_until=until)
            await artifacts.keep("patch.diff", b"a patch")
            await bus.publish(Reward(session_id="s1", run=str(until), details={"artifacts": artifacts.details}))
        path = age(tmp_path, artifacts.details["patch.diff"]["url"], 900)
        assert (await swept(bus, store)).kept == 1
        assert path.exists()


async def test_nothing_young_goes_whatever_one_asks(bus: MemoryBus, store: LocalBlobStore, tmp_path: Path) -> None:
    """A blob is written before its record: an hour's grace always holds."""
    async with bus:
        path = age(tmp_path, await store.put("s1", b"just written"), 0.5)
        assert (await swept(bus, store, hours=0)).young == 1
        assert path.exists()


async def test_put_again_is_young_again(store: LocalBlobStore, tmp_path: Path) -> None:
    """What is stored once more while the sweep goes on isn't taken away under the new record."""
    url = await store.put("s1", b"x")
    age(tmp_path, url, 900)
    key = "/".join(url.split("/")[-2:])
    await store.put("s1", b"x")
    assert await store.remove(key, unless_after=NOW - HOUR_MS) is False
    age(tmp_path, url, 900)
    assert await store.remove(key, unless_after=NOW - HOUR_MS) is True
    assert await store.remove(key, unless_after=NOW - HOUR_MS) is False


async def test_other_file_systems(tmp_path: Path) -> None:
    """Through fsspec: entries with their time, removal, and nothing in a store that isn't there yet."""
    store = open_store(f"memory://prune-{tmp_path.name}")
    assert isinstance(store, RemoteBlobStore)
    assert await store.entries() == []
    url = await store.put("s1", b"bytes")
    (entry,) = await store.entries()
    assert (entry.key, entry.size_bytes) == ("/".join(url.split("/")[-2:]), 5)
    assert entry.modified_at is not None
    assert abs(entry.modified_at - time.time() * 1000) < 60_000
    assert await store.remove(entry.key, unless_after=entry.modified_at - 1) is False
    assert await store.remove(entry.key, unless_after=entry.modified_at) is True
    assert await store.entries() == []
