"""Append-only segment files of one proxy incarnation, locked by their writer, made durable by group commit."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from capture_proxy.spool.frames import HEADER_BYTES, Frame, Kind, Torn, pack, unpack

log = structlog.get_logger(__name__)

_SUFFIX: Final = ".seg"
_LOCK: Final = "lock"


class SpoolWriteError(OSError):
    """The spool can't take an entry: its disk is full or failing. Nothing of the entry stands in the file."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where an entry stands: segment number, offset of its header, its whole size."""

    seq: int
    segment: int
    offset: int
    size_bytes: int


@dataclass(slots=True)
class _Segment:
    number: int
    path: Path
    size_bytes: int = 0
    last_seq: int = 0


def try_lock(directory: Path) -> int | None:
    """Takes a spool directory's lock: the file descriptor that holds it, or None when somebody else does or it is gone."""
    try:
        fd = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder before us may have deleted the directory between our open and our lock.
        if os.fstat(fd).st_ino == (directory / _LOCK).stat().st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def create_directory(root: Path, name: str) -> tuple[Path, int]:
    """Makes a spool directory that nobody ever sees unlocked; returns it with its lock."""
    root.mkdir(parents=True, exist_ok=True)
    hidden, final = root / f".new-{name}", root / name
    hidden.mkdir(mode=0o700)
    fd = try_lock(hidden)
    if fd is None:
        raise SpoolWriteError(f"can't lock the new spool directory {hidden}: is another proxy using the same name?")
    hidden.rename(final)
    _fsync_directory(root)
    return final, fd


def _fsync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Journal:
    """Entries in the order in which they were appended.

    `append` is synchronous and leaves durability to `sync`, which batches: one fsync in a thread serves every caller that
    came before it began. `fsync` can be replaced in tests.
    """

    def __init__(
        self,
        directory: Path,
        lock_fd: int,
        *,
        segment_bytes: int = 64 << 20,
        fsync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        self.directory = directory
        self.last_seq = 0
        self.synced_seq = 0
        self.failure: OSError | None = None
        self._lock_fd: int | None = lock_fd
        self._segment_bytes = segment_bytes
        self._fsync = fsync
        self._segments: list[_Segment] = []
        self._fd: int | None = None
        self._retired: list[int] = []
        self._flush: asyncio.Task[None] | None = None
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="spool-fsync")

    # --- reading

    def scan(self) -> Iterator[tuple[Position, Frame]]:
        """Every whole frame on disk, in order; call it once, before the first append.

        A torn tail ends its segment: whatever stands behind it was never durable, and is reported, not read.
        """
        for path in sorted(self.directory.glob(f"*{_SUFFIX}")):
            segment = _Segment(int(path.stem), path)
            self._segments.append(segment)
            for item in unpack(path.read_bytes()):
                if isinstance(item, Torn):
                    log.warning(
                        "spool.torn_tail",
                        path=str(path),
                        offset=item.offset,
                        lost_bytes=item.lost_bytes,
                        why=item.reason,
                    )
                    break
                segment.size_bytes = item.offset + item.size_bytes
                segment.last_seq = item.seq
                self.last_seq = max(self.last_seq, item.seq)
                yield Position(item.seq, segment.number, item.offset, item.size_bytes), item
        self.synced_seq = self.last_seq

    def read(self, position: Position) -> bytes:
        """The body at a position. Blocking; raises OSError, or ValueError when something else stands there."""
        path = self._path(position.segment)
        with path.open("rb") as file:
            file.seek(position.offset)
            data = file.read(position.size_bytes)
        frame = next(unpack(data), None)
        if not isinstance(frame, Frame) or frame.seq != position.seq:
            raise ValueError(f"{path}:{position.offset} doesn't hold entry {position.seq} any more")
        return frame.body

    # --- writing

    @property
    def wants_rotation(self) -> bool:
        """Whether the next entry should open a new segment."""
        return self._fd is None or self._segments[-1].size_bytes >= self._segment_bytes

    def rotate(self, carried: Iterable[tuple[Kind, bytes]]) -> None:
        """Opens a new segment and puts the state that older ones hold at its head. Raises SpoolWriteError."""
        number = self._segments[-1].number + 1 if self._segments else 1
        path = self._path(number)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            _fsync_directory(self.directory)
        except OSError as exc:
            raise SpoolWriteError(exc.errno, f"can't open the spool segment {path}: {exc.strerror}") from exc
        old, self._fd = self._fd, fd
        self._segments.append(_Segment(number, path))
        try:
            for kind, body in carried:
                self._write(kind, body)
        except SpoolWriteError:
            # Without the carried state at its head the segment may not follow the ones that it would let go.
            self._segments.pop()
            self._fd = old
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        if old is not None:
            self._retired.append(old)

    def append(self, kind: Kind, body: bytes) -> Position:
        """Adds an entry (to the page cache). Raises SpoolWriteError, and then nothing was added."""
        if self._fd is None:
            raise SpoolWriteError("the spool has no open segment")
        return self._write(kind, body)

    def _write(self, kind: Kind, body: bytes) -> Position:
        assert self._fd is not None
        segment = self._segments[-1]
        seq = self.last_seq + 1
        data = pack(kind, seq, body)
        offset = segment.size_bytes
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done:] if done else data, offset + done)
        except OSError as exc:
            # The next entry overwrites what a full disk let through of this one; a reader sees a torn tail until then.
            raise SpoolWriteError(exc.errno, f"can't append to {segment.path}: {exc.strerror}") from exc
        segment.size_bytes += len(data)
        segment.last_seq = self.last_seq = seq
        return Position(seq, segment.number, offset, len(data))

    async def sync(self, seq: int) -> None:
        """Returns when entry `seq` is on the disk. Raises SpoolWriteError when the disk refuses: it may then be lost."""
        while self.synced_seq < seq:
            if self.failure is not None:
                raise SpoolWriteError(self.failure.errno, f"fsync of {self.directory} failed: {self.failure.strerror}")
            if self._flush is None:
                self._flush = asyncio.create_task(self._flush_once(), name="spool-flush")
            await asyncio.shield(self._flush)

    async def _flush_once(self) -> None:
        target, fd = self.last_seq, self._fd
        retired, self._retired = self._retired, []
        try:
            await asyncio.get_running_loop().run_in_executor(self._flusher, self._flush_files, [*retired, fd])
        except OSError as exc:
            # After a failed fsync the kernel may have dropped the pages: nothing since the last success counts as durable.
            self.failure = exc
            log.warning("spool.fsync_failed", directory=str(self.directory), error=str(exc))
        else:
            self.synced_seq = max(self.synced_seq, target)
        finally:
            self._flush = None
            for old in retired:
                os.close(old)

    def _flush_files(self, fds: list[int | None]) -> None:
        for fd in fds:
            if fd is not None:
                self._fsync(fd)

    # --- shrinking and closing

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self._segments)

    def drop_through(self, seq: int) -> None:
        """Deletes the closed segments that hold nothing above `seq`."""
        while len(self._segments) > 1 and self._segments[0].last_seq <= seq:
            self._segments.pop(0).path.unlink(missing_ok=True)

    async def close(self, *, is_done: bool) -> None:
        """Flushes, closes and unlocks; with `is_done` the whole directory goes."""
        if self._flush is not None:
            await asyncio.shield(self._flush)
        if self.failure is None and self.synced_seq < self.last_seq and not is_done:
            await self._flush_once()
        self._flusher.shutdown(wait=False)
        for fd in (*self._retired, self._fd):
            if fd is not None:
                os.close(fd)
        self._retired, self._fd = [], None
        if is_done:
            await asyncio.to_thread(shutil.rmtree, self.directory, ignore_errors=True)
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:08d}{_SUFFIX}"


__all__ = ["HEADER_BYTES", "Journal", "Position", "SpoolWriteError", "create_directory", "try_lock"]
