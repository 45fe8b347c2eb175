"""What model sockets may take, and what happened on them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketLimits:
    """What model sockets may take of the worker's memory, and how long a client is held while there is no proxy."""

    hold_s: float = 300.0
    buffer_bytes: int = 256 * 1024
    """Per connection and direction, before its sender has to wait."""
    resend_bytes: int = 32 * 1024 * 1024
    """Of one request, kept until its answer begins; larger ones aren't sent again."""


@dataclass(slots=True)
class Tally:
    """What happened on a session's connections."""

    connections: int = 0
    resent: int = 0
    """Requests that were sent again to another proxy."""
    cut: int = 0
    """Connections that were cut because their proxy was lost."""
    is_last_cut: bool = False
    """Nothing came from a proxy since the last cut."""
