"""One connection's HTTP/1 exchanges as their bytes pass: what has to be sent again when its proxy dies, and what can't be. Pure.

Heads are read, bodies are only counted. Whatever doesn't look like one request at a time makes the connection *opaque*: it is still
relayed, byte for byte, but nothing of it is ever sent twice.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

_HEAD_END: Final = b"\r\n\r\n"
_CHUNKED_END: Final = b"\r\n0\r\n\r\n"
_MAX_HEAD_BYTES: Final = 262_144
"""Vendors' clients stay below 16 KiB; whatever is larger isn't read any further."""

_METHOD: Final = re.compile(rb"[A-Z]{3,10} ")
_INTERIM: Final = re.compile(rb"HTTP/1\.[01] (1\d\d)")
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d\d\d)")
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding:[^\r\n]*chunked", re.IGNORECASE)
_CLOSE: Final = re.compile(rb"HTTP/1\.0|\r\nconnection:[^\r\n]*close", re.IGNORECASE)
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


class State(StrEnum):
    """Where a connection's exchange stands."""

    IDLE = "idle"
    """Nothing is asked, or everything that was asked is answered in full."""
    PENDING = "pending"
    """A request, or a part of one, without a byte of its answer."""
    ANSWERING = "answering"
    """The answer has begun."""
    OPAQUE = "opaque"
    """No request and answer: a tunnel, another protocol, or something that we don't read."""


class Budget:
    """How many bytes all connections together may keep for sending again."""

    def __init__(self, limit_bytes: int) -> None:
        self._left = limit_bytes

    def take(self, size: int) -> bool:
        """Whether there is room for so many more; they then count."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give(self, size: int) -> None:
        """So many are kept no longer."""
        self._left += size


class Exchange:
    """Follows a connection. `limit_bytes` of one request are kept at most, out of `budget`."""

    def __init__(self, limit_bytes: int, budget: Budget) -> None:
        self.state = State.IDLE
        self.answered = 0
        """Answers that came in full."""
        self.is_last = False
        """The answer says, or the request did, that the connection ends with it."""
        self._limit = limit_bytes
        self._budget = budget
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._is_kept = True
        self._request_head = bytearray()
        self._request_bytes = 0
        self._request_end: int | None = None
        self._has_request_head = False
        self._has_no_body = self._may_switch = self._is_tunnel = False
        self._answer_head = bytearray()
        self._has_answer_head = False
        self._answer_left: int | None = None
        self._is_chunked = False
        self._tail = b""

    @property
    def pending(self) -> list[bytes] | None:
        """What to send again to another proxy: all of the request so far; None when that can't be done."""
        if self.state is State.PENDING and self._is_kept:
            return list(self._kept)
        return None

    def close(self) -> None:
        """Gives back what is kept."""
        self._forget()
        self.state = State.OPAQUE

    # --- from the client

    def asked(self, data: bytes) -> None:
        """The client has sent this."""
        if self.state is State.OPAQUE:
            return
        if self.state is State.ANSWERING:
            # The rest of a body that is answered early, or a second request in line: nothing of it is ever sent again.
            self._request_bytes += len(data)
            return
        if self.state is State.IDLE:
            self._begin()
            if not _METHOD.match(data[:11]) and len(data) >= 11:
                self._give_up()
                return
        self._keep(data)
        self._request_bytes += len(data)
        if not self._has_request_head:
            self._read_request_head(data)
        if self._request_end is not None and self._request_bytes > self._request_end:
            self._give_up()  # a second request in line

    def _begin(self) -> None:
        self.state = State.PENDING
        self._is_kept = True
        self._request_head.clear()
        self._request_bytes, self._request_end = 0, None
        self._has_request_head = self._has_no_body = self._may_switch = self._is_tunnel = False
        self._reset_answer()

    def _keep(self, data: bytes) -> None:
        if not self._is_kept:
            return
        if self._kept_bytes + len(data) > self._limit or not self._budget.take(len(data)):
            self._forget()
            self._is_kept = False
            return
        self._kept.append(data)
        self._kept_bytes += len(data)

    def _forget(self) -> None:
        self._budget.give(self._kept_bytes)
        self._kept, self._kept_bytes = [], 0

    def _give_up(self) -> None:
        self._forget()
        self.state = State.OPAQUE

    def _read_request_head(self, data: bytes) -> None:
        head = self._request_head
        head += data
        end = head.find(_HEAD_END)
        if end < 0:
            if len(head) > _MAX_HEAD_BYTES:
                self._give_up()
            return
        del head[end + 2 :]
        self._has_request_head = True
        if not _METHOD.match(head):
            self._give_up()
            return
        self._has_no_body = head.startswith(b"HEAD ")
        self._is_tunnel = head.startswith(b"CONNECT ")
        self._may_switch = _UPGRADE.search(head) is not None
        if not _CHUNKED.search(head) and not self._may_switch:
            length = _LENGTH.search(head)
            self._request_end = end + len(_HEAD_END) + (int(length[1]) if length else 0)

    # --- from the proxy

    def answer(self, data: bytes) -> None:
        """The proxy has sent this."""
        if self.state is State.OPAQUE:
            return
        if self.state is State.IDLE or not self._has_request_head:
            self._give_up()  # nothing was asked, or not yet
            return
        if not self._has_answer_head:
            rest = self._read_answer_head(data)
            if rest is None:
                return
            data = rest
        self._count(data)

    def _read_answer_head(self, data: bytes) -> bytes | None:
        """Reads up to the end of the final answer's head; what stands behind it, None when it isn't there yet."""
        head = self._answer_head
        head += data
        while (interim := _INTERIM.match(head)) and (end := head.find(_HEAD_END)) >= 0 and interim[1] != b"101":
            del head[: end + len(_HEAD_END)]
        if not head:
            return None
        self.state = State.ANSWERING  # the client has seen a part of an answer
        self._forget()
        end = head.find(_HEAD_END)
        if end < 0:
            if len(head) > _MAX_HEAD_BYTES:
                self._give_up()
            return None
        rest = bytes(head[end + len(_HEAD_END) :])
        del head[end + 2 :]
        self._has_answer_head = True
        self._expect_body()
        return rest

    def _expect_body(self) -> None:
        """What the answer's head says of its body."""
        head = self._answer_head
        status = _STATUS.match(head)
        code = int(status[1]) if status else 0
        self.is_last = bool(_CLOSE.search(head) or _CLOSE.search(self._request_head))
        if not code or code == 101 or (self._is_tunnel and 200 <= code < 300):
            self._give_up()
        elif self._has_no_body or code in {204, 304}:
            self._answer_left = 0
        elif _CHUNKED.search(head):
            self._is_chunked = True
            self._tail = b"\r\n"  # so that an empty body ends as any other
        else:
            length = _LENGTH.search(head)
            self._answer_left = int(length[1]) if length else None

    def _count(self, data: bytes) -> None:
        if self.state is not State.ANSWERING:
            return
        if self._is_chunked:
            self._tail = (self._tail + data[-len(_CHUNKED_END) :])[-len(_CHUNKED_END) :]
            if self._tail == _CHUNKED_END:
                self._end()
        elif self._answer_left is not None:
            self._answer_left -= len(data)
            if self._answer_left < 0:
                self._give_up()
            elif self._answer_left == 0:
                self._end()

    def _end(self) -> None:
        if self._request_end is not None and self._request_bytes < self._request_end:
            self._give_up()  # answered before it was whole: the rest of its body is still to come
            return
        if self._request_end is not None and self._request_bytes > self._request_end:
            self._give_up()
            return
        self.answered += 1
        self.state = State.IDLE

    def _reset_answer(self) -> None:
        self._answer_head.clear()
        self._has_answer_head = self._is_chunked = False
        self._answer_left, self._tail = None, b""
