"""Open leases: whose secret opens what, how many calls run, and the drain before the seal. No I/O, no clock."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from schemas import ids
from schemas.records import SessionSpec

# Sealed leases are remembered, so that a late call hears "sealed" (409) and not "unknown" (401); the oldest are forgotten.
_REMEMBERED: Final = 10_000


class LeaseState(StrEnum):
    """Where a lease stands at this proxy."""

    OPENING = "opening"
    OPEN = "open"
    SEALING = "sealing"
    SEALED = "sealed"


LEGAL_MOVES: Final[dict[LeaseState, frozenset[LeaseState]]] = {
    LeaseState.OPENING: frozenset({LeaseState.OPEN, LeaseState.SEALING}),
    LeaseState.OPEN: frozenset({LeaseState.SEALING}),
    LeaseState.SEALING: frozenset({LeaseState.SEALED}),
    LeaseState.SEALED: frozenset(),
}


class LeaseRefusalError(Exception):
    """An open or a seal that can't be done; `status` is the admin listener's HTTP status.

    `is_certain` tells the opener that nothing was done, so that it needn't ask here again before it goes elsewhere.
    """

    def __init__(self, message: str, *, status: int = 409, is_certain: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.is_certain = is_certain


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a secret opens nothing: the rejection's reason, and the session where it is known."""

    reason: str
    session_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """How a lease's latest call ended, or that it was refused before it became one (`call_seq`: the call before it). Side calls don't count."""

    call_seq: int = 0
    state: str = ""
    kind: str = ""
    status: int = 0
    boundary: str = ""
    message: str = ""


@dataclass(eq=False, slots=True, kw_only=True)
class Lease:
    """One writer's right to take calls, and the count of what it took."""

    session_id: str
    lease_id: str
    attempt: int
    writer: int
    secret_hash: str
    spec: SessionSpec
    opened_at: int = 0
    since_at: int = 0
    """When the lease was first opened anywhere (UTC epoch ms), where the opener knows it; 0: unknown."""
    state: LeaseState = LeaseState.OPENING
    last_seq: int = 0
    seal_reason: str = ""
    can_move: bool = False
    """Its opener keeps the harness' connections, and opens the next writer elsewhere when this proxy stops."""
    last_end: CallEnd | None = None
    unrecorded: set[int] = field(default_factory=set)
    """Calls (by call_seq) whose record isn't appended yet."""
    undelivered: set[int] = field(default_factory=set)
    """Calls whose delivery fact isn't appended yet."""
    sealed: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def move(self, state: LeaseState) -> None:
        """Changes the state; RuntimeError for a move that isn't legal."""
        if state not in LEGAL_MOVES[self.state]:
            raise RuntimeError(f"lease {self.lease_id} can't go from {self.state} to {state}")
        self.state = state
        if state is LeaseState.SEALED:
            self.sealed.set()

    def next_call(self) -> int:
        """The number of the next call, from 1; the call now counts as running. RuntimeError unless open."""
        if self.state is not LeaseState.OPEN:
            raise RuntimeError(f"lease {self.lease_id} is {self.state}: it takes no calls")
        self.last_seq += 1
        self.unrecorded.add(self.last_seq)
        self.undelivered.add(self.last_seq)
        return self.last_seq

    def undo_call(self, call_seq: int) -> None:
        """Takes the newest number back, when its CallStarted couldn't be written and nothing knows of it."""
        if call_seq != self.last_seq:
            raise RuntimeError(f"call {call_seq} isn't the newest ({self.last_seq}): its number can't be taken back")
        self.unrecorded.discard(call_seq)
        self.undelivered.discard(call_seq)
        self.last_seq -= 1

    def recorded(self, call_seq: int) -> None:
        """The call's record is appended."""
        self.unrecorded.discard(call_seq)
        self._changed.set()

    def delivered(self, call_seq: int) -> bool:
        """The call's delivery fact is about to be appended; False when it already was."""
        if call_seq not in self.undelivered:
            return False
        self.undelivered.discard(call_seq)
        self._changed.set()
        return True

    def deliver_again(self, call_seq: int) -> bool:
        """An answer that didn't arrive is on its way again, and a seal waits for it; False when the lease isn't open."""
        if self.state is not LeaseState.OPEN:
            return False
        self.undelivered.add(call_seq)
        return True

    async def drained(self, *, records_only: bool = False) -> None:
        """Returns when every started call has its record (and its delivery fact)."""
        while self.unrecorded or (self.undelivered and not records_only):
            self._changed.clear()
            await self._changed.wait()


class LeaseBook:
    """All leases of this proxy incarnation, by secret and by writer."""

    def __init__(self) -> None:
        self._by_writer: dict[tuple[str, int], Lease] = {}
        self._by_secret: dict[str, Lease] = {}
        self._active: dict[tuple[str, int], Lease] = {}
        self._sealed: OrderedDict[tuple[str, int], Lease] = OrderedDict()
        self._ended: OrderedDict[str, str] = OrderedDict()

    def open(self, lease: Lease) -> Lease:
        """Takes a lease in as OPENING; the same opening again gives the lease that is there. Raises LeaseRefusalError."""
        found = self._by_writer.get((lease.lease_id, lease.writer))
        if found is not None:
            if found.secret_hash != lease.secret_hash:
                raise LeaseRefusalError(
                    f"writer {lease.writer} of lease {lease.lease_id} is open here under another secret"
                )
            if found.state in (LeaseState.SEALING, LeaseState.SEALED):
                raise LeaseRefusalError(
                    f"writer {lease.writer} of lease {lease.lease_id} is {found.state} here: open the next writer"
                )
            return found
        if lease.lease_id in self._ended:
            raise LeaseRefusalError(f"lease {lease.lease_id} has ended ({self._ended[lease.lease_id]})")
        holder = self._by_secret.get(lease.secret_hash)
        if holder is not None and (
            holder.lease_id != lease.lease_id or holder.state in (LeaseState.OPENING, LeaseState.OPEN)
        ):
            raise LeaseRefusalError(
                f"the secret of this opening already belongs to writer {holder.writer} of lease {holder.lease_id} ({holder.state}): "
                "seal that one first, or mint a secret per lease"
            )
        self._by_writer[lease.lease_id, lease.writer] = lease
        self._active[lease.lease_id, lease.writer] = lease
        self._by_secret[lease.secret_hash] = lease
        return lease

    def authorise(self, secret_hash: str) -> Lease | Denial:
        """The open lease of a secret, or why there is none."""
        lease = self._by_secret.get(secret_hash)
        if lease is None:
            return Denial("unknown_secret")
        if lease.state is LeaseState.OPEN:
            return lease
        if lease.state is LeaseState.OPENING:
            return Denial("not_open_yet", lease.session_id)
        return Denial("lease_ended" if lease.lease_id in self._ended else "sealed", lease.session_id)

    def is_known(self, secret: str) -> bool:
        """Whether a text is a secret that opens a lease here, or did."""
        return ids.secret_hash(secret) in self._by_secret

    def find(self, lease_id: str, writer: int) -> Lease | None:
        """One writer's lease."""
        return self._by_writer.get((lease_id, writer))

    def of_session(self, session_id: str) -> list[Lease]:
        """The unsealed leases of a session."""
        return [lease for lease in self._active.values() if lease.session_id == session_id]

    def active(self) -> list[Lease]:
        """The leases that aren't sealed yet."""
        return list(self._active.values())

    def sealed(self, lease: Lease) -> None:
        """Remembers a lease as sealed, for a while."""
        self._active.pop((lease.lease_id, lease.writer), None)
        self._sealed[lease.lease_id, lease.writer] = lease
        while len(self._sealed) > _REMEMBERED:
            key, old = self._sealed.popitem(last=False)
            del self._by_writer[key]
            if self._by_secret.get(old.secret_hash) is old:
                del self._by_secret[old.secret_hash]

    def ended(self, lease_id: str, reason: str) -> None:
        """Remembers that a lease has ended, so that it can't be opened (again)."""
        self._ended[lease_id] = reason
        self._ended.move_to_end(lease_id)
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)

    def drop(self, lease: Lease) -> None:
        """Forgets a lease whose opening couldn't be recorded."""
        self._by_writer.pop((lease.lease_id, lease.writer), None)
        self._active.pop((lease.lease_id, lease.writer), None)
        if self._by_secret.get(lease.secret_hash) is lease:
            del self._by_secret[lease.secret_hash]
