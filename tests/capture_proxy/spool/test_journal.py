"""The journal: appends, group commit, torn tails, rotation, locks, full disks."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from capture_proxy.spool.adoption import orphans
from capture_proxy.spool.frames import Kind, pack
from capture_proxy.spool.journal import Journal, SpoolWriteError, create_directory, try_lock


def make(root: Path, name: str = "one", **options: object) -> Journal:
    """A journal of a new incarnation, ready to append."""
    directory, lock = create_directory(root, name)
    journal = Journal(directory, lock, **options)  # type: ignore[arg-type]
    journal.rotate(())
    return journal


def bodies(directory: Path) -> list[bytes]:
    """What a later reader finds."""
    lock = try_lock(directory)
    assert lock is not None
    journal = Journal(directory, lock)
    try:
        return [frame.body for _, frame in journal.scan()]
    finally:
        os.close(lock)
        journal._flusher.shutdown()


async def test_entries_survive_in_order(tmp_path: Path) -> None:
    """What was appended is read back in order, by position and by a later reader."""
    journal = make(tmp_path)
    positions = [journal.append(Kind.RECORD, body) for body in (b"a", b"bb", b"")]
    assert [journal.read(p) for p in positions] == [b"a", b"bb", b""]
    assert [p.seq for p in positions] == [1, 2, 3]
    await journal.close(is_done=False)
    assert bodies(journal.directory) == [b"a", b"bb", b""]


async def test_one_fsync_serves_everyone_who_came_before_it(tmp_path: Path) -> None:
    """Group commit: many waiters, few fsyncs; nobody returns before the fsync that covers him."""
    gate, begun = threading.Event(), threading.Event()
    count = 0

    def fsync(fd: int) -> None:
        nonlocal count
        begun.set()
        gate.wait(10.0)
        count += 1
        os.fdatasync(fd)

    journal = make(tmp_path, fsync=fsync)
    first = asyncio.create_task(journal.sync(journal.append(Kind.RECORD, b"0").seq))
    assert await asyncio.to_thread(begun.wait, 5.0)
    rest = [asyncio.create_task(journal.sync(journal.append(Kind.RECORD, b"x").seq)) for _ in range(50)]
    done, _ = await asyncio.wait([first, *rest], timeout=0.1)
    assert not done
    gate.set()
    await asyncio.gather(first, *rest)
    assert count == 2
    assert journal.synced_seq == 51
    await journal.close(is_done=True)


async def test_a_failed_fsync_is_never_durable(tmp_path: Path) -> None:
    """After EIO nobody is told that his entry is on the disk, now or later."""

    def fsync(_fd: int) -> None:
        raise OSError(errno.EIO, "broken")

    journal = make(tmp_path, fsync=fsync)
    position = journal.append(Kind.RECORD, b"a")
    for _ in range(2):
        with pytest.raises(SpoolWriteError, match="broken"):
            await journal.sync(position.seq)
    await journal.close(is_done=True)


async def test_a_torn_tail_is_left_out(tmp_path: Path) -> None:
    """Half an entry at the end is not read; what stands before it is."""
    journal = make(tmp_path)
    journal.append(Kind.RECORD, b"whole")
    await journal.close(is_done=False)
    [segment] = journal.directory.glob("*.seg")
    with segment.open("ab") as file:
        file.write(pack(Kind.RECORD, 2, b"half an entry")[:-4])
    assert bodies(journal.directory) == [b"whole"]


async def test_a_full_disk_leaves_no_half_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC in mid-entry raises; the next entry takes its place, and a reader sees only whole ones."""
    journal = make(tmp_path)
    journal.append(Kind.RECORD, b"first")
    real, calls = os.pwrite, 0

    def filling(fd: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return real(fd, data[:7], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", filling)
        with pytest.raises(SpoolWriteError, match="No space left"):
            journal.append(Kind.RECORD, b"second, which is long")
    journal.append(Kind.RECORD, b"2nd")
    await journal.close(is_done=False)
    assert bodies(journal.directory) == [b"first", b"2nd"]


async def test_a_rotation_that_finds_no_room_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the carried state the old segment stays the current one."""
    journal = make(tmp_path, segment_bytes=1)
    journal.append(Kind.RECORD, b"a")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(SpoolWriteError):
            journal.rotate([(Kind.CARRIED_CALL, b"c")])
    assert len(list(journal.directory.glob("*.seg"))) == 1
    journal.append(Kind.RECORD, b"b")
    await journal.close(is_done=False)
    assert bodies(journal.directory) == [b"a", b"b"]


async def test_acknowledged_segments_go(tmp_path: Path) -> None:
    """Closed segments up to a number are deleted; the current one and later ones stay."""
    journal = make(tmp_path, segment_bytes=1)
    for body in (b"a", b"b", b"c"):
        if journal.wants_rotation:
            journal.rotate([(Kind.CARRIED_CALL, b"carried")])
        last = journal.append(Kind.RECORD, body)
    journal.drop_through(0)
    assert len(list(journal.directory.glob("*.seg"))) == 3
    journal.drop_through(2)
    assert len(list(journal.directory.glob("*.seg"))) == 2
    journal.drop_through(last.seq)
    assert len(list(journal.directory.glob("*.seg"))) == 1
    assert journal.read(last) == b"c"
    await journal.close(is_done=False)
    assert bodies(journal.directory) == [b"carried", b"c"]


async def test_a_spool_belongs_to_its_writer_until_he_is_gone(tmp_path: Path) -> None:
    """Nobody adopts a locked spool; a closed one is an orphan; a deleted one is nobody's."""
    journal = make(tmp_path, "one")
    assert orphans(tmp_path, {"two"}) == []
    await journal.close(is_done=False)
    [(path, fd)] = orphans(tmp_path, {"two"})
    assert path == journal.directory
    assert orphans(tmp_path, {"two"}) == []
    os.close(fd)
    assert orphans(tmp_path, {"one"}) == []
    assert try_lock(tmp_path / "never-was") is None
