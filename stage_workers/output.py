"""Bounded keeping of a program's output: the first part and the last, and how much fell out between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path


class HeadAndTail:
    """Keeps at most `limit` bytes of a stream: its first half and its last half."""

    def __init__(self, limit: int) -> None:
        self._head_room = limit // 2
        self._tail_limit = limit - limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.dropped_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Takes the next piece; returns the part of it that still belongs to the head."""
        head, rest = data[: self._head_room], data[self._head_room :]
        self._head += head
        self._head_room -= len(head)
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
            while self._tail_size > self._tail_limit:
                first = self._tail.popleft()
                excess = min(len(first), self._tail_size - self._tail_limit)
                self.dropped_bytes += excess
                self._tail_size -= excess
                if excess < len(first):
                    self._tail.appendleft(first[excess:])
        return head

    @property
    def rest(self) -> bytes:
        """What comes after the head: a line that says how much is missing (if any is), and the tail."""
        tail = b"".join(self._tail)
        if not self.dropped_bytes:
            return tail
        return b"\n[... %d bytes left out ...]\n" % self.dropped_bytes + tail

    @property
    def value(self) -> bytes:
        """Everything kept."""
        return bytes(self._head) + self.rest


class BoundedLog:
    """A log file of at most `limit` bytes (and one line): the head is written as it comes, the tail when it is closed."""

    def __init__(self, path: Path, limit: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._kept = HeadAndTail(limit)
        self._file = path.open("wb", buffering=0)

    def feed(self, data: bytes) -> None:
        """The next piece of output."""
        head = self._kept.feed(data)
        if head:
            self._file.write(head)

    def close(self) -> None:
        """Writes the tail; a second call does nothing."""
        if not self._file.closed:
            self._file.write(self._kept.rest)
            self._file.close()


class Lines:
    """Cuts a stream of bytes into lines for `take`; a line longer than `limit` is passed over, so memory stays bounded."""

    def __init__(self, take: Callable[[bytes], None], limit: int = 8 * 1024 * 1024) -> None:
        self._take = take
        self._limit = limit
        self._pending = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> None:
        """The next piece."""
        *whole, rest = data.split(b"\n")
        for piece in whole:
            if not self._skipping:
                self._pending += piece
                self._take(bytes(self._pending))
            self._pending.clear()
            self._skipping = False
        if not self._skipping:
            self._pending += rest
            if len(self._pending) > self._limit:
                self._pending.clear()
                self._skipping = True

    def close(self) -> None:
        """The end of the stream: a last line without a newline counts too."""
        if self._pending and not self._skipping:
            self._take(bytes(self._pending))
        self._pending.clear()
