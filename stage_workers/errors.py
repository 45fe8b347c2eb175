"""How a session's stage fails or is taken away. Failures are data: each names the boundary at fault."""

from __future__ import annotations

from enum import StrEnum

from schemas.records import Boundary, Status


class StageFault(Exception):  # noqa: N818  # becomes a fact, not a crash
    """A stage failed: `boundary` is at fault, `status` says how."""

    def __init__(self, boundary: Boundary, error: str, status: Status = Status.FAILED) -> None:
        super().__init__(error)
        self.boundary = boundary
        self.status = status
        self.error = error


class EndingKind(StrEnum):
    """Why a session is taken from its worker before its work is done."""

    CANCELLED = "cancelled"
    """Somebody asked for it: told as a result."""
    DEADLINE = "deadline"
    """The orchestrator's clock ran out: told as a time-out."""
    OVER = "over"
    """Its terminal fact is on the log: what runs is told as cancelled, what waits just goes."""
    LOST = "lost"
    """The lease, or the chance of one, is another's: nothing more may be told."""
    SHUTDOWN = "shutdown"
    """The worker stops: nothing is told, so that the lease expires and another attempt can be made."""

    @property
    def strength(self) -> int:
        """Of two reasons the stronger holds."""
        return _STRENGTH[self]

    @property
    def is_final(self) -> bool:
        """Whether nothing of the session is left to do here."""
        return self.strength > 1


_STRENGTH = {
    EndingKind.CANCELLED: 1,
    EndingKind.DEADLINE: 1,
    EndingKind.OVER: 2,
    EndingKind.SHUTDOWN: 3,
    EndingKind.LOST: 4,
}


class SessionOver(Exception):  # noqa: N818  # control flow, caught by the flow
    """Raised inside a session's flow when it is taken away."""

    def __init__(self, kind: EndingKind, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason
