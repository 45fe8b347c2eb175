"""The assembler's small row per session: what is known of its leases and their writers, without a single token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from schemas.records import CaptureGap, SessionSpec


@dataclass(frozen=True, slots=True)
class WriterRow:
    """The calls seen of one writer: 1 … `contiguous` are all there, `beyond` are single ones above a hole.

    `top` is the highest number seen in any fact; `last_seq` is what the writer's seal said (None: not sealed).
    """

    contiguous: int = 0
    beyond: tuple[int, ...] = ()
    top: int = 0
    last_seq: int | None = None

    def with_call(self, seq: int) -> WriterRow:
        """The row with one call more."""
        beyond = {*self.beyond, seq}
        contiguous = self.contiguous
        while contiguous + 1 in beyond:
            contiguous += 1
        left = tuple(sorted(n for n in beyond if n > contiguous))
        return replace(self, contiguous=contiguous, beyond=left, top=max(self.top, seq))

    def has(self, seq: int) -> bool:
        """Whether this call's record is there."""
        return seq <= self.contiguous or seq in self.beyond

    @property
    def is_complete(self) -> bool:
        """Whether the writer is sealed and all its calls are there."""
        return self.last_seq is not None and self.contiguous >= self.last_seq


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """One lease.

    `sealed` lists the writers that its end named (None: it hasn't ended), `closed` is the digest of what was published last
    ('' while open) as `revision`, `late` are the (writer, call_seq) that came after the first. `is_expired`: taken from its holder, who can't end it any more.
    `has_told_gaps`: what was published last says that calls are missing.
    """

    attempt: int = 1
    writers: Mapping[int, WriterRow] = field(default_factory=dict)
    sealed: tuple[int, ...] | None = None
    is_overdue: bool = False
    is_superseded: bool = False
    is_expired: bool = False
    closed: str = ""
    revision: int = 0
    late: tuple[tuple[int, int], ...] = ()
    opened_at: int = 0
    has_told_gaps: bool = False

    def with_writer(self, number: int, row: WriterRow) -> LeaseRow:
        """The lease with one writer's row replaced."""
        return replace(self, writers={**self.writers, number: row})

    @property
    def awaited(self) -> list[int]:
        """The writers whose seals the lease waits for: those that its end named, and those that are known to have opened."""
        return sorted({*(self.sealed or ()), *self.writers})

    @property
    def can_close(self) -> bool:
        """Whether everything that the lease waits for is there, or the wait is over."""
        if self.closed or self.sealed is None:
            return False
        return self.is_overdue or not self.gaps()

    def gaps(self) -> list[CaptureGap]:
        """The writers of which something is missing, and the last call before the hole."""
        rows = ((number, self.writers.get(number, WriterRow())) for number in self.awaited)
        return [CaptureGap(writer=number, after_seq=row.contiguous) for number, row in rows if not row.is_complete]

    @property
    def is_revisable(self) -> bool:
        """Whether what came after the close is whole, so that it is worth saying again what the lease holds.

        A seal alone is, too, where calls were said to be missing: with it they are known not to be.
        """
        return bool(self.closed and (self.late or self.has_told_gaps)) and not self.gaps()

    def known(self) -> set[tuple[int, int]]:
        """(writer, call_seq) of the calls whose records were seen."""
        return {(writer, seq) for writer, seq in self.calls() if self.writers[writer].has(seq)}

    def calls(self) -> Iterator[tuple[int, int]]:
        """(writer, call_seq) of everything that may be kept for this lease."""
        for number in sorted(self.writers):
            for seq in range(1, self.writers[number].top + 1):
                yield number, seq


@dataclass(frozen=True, slots=True)
class SessionRow:
    """What the assembler knows of a session."""

    task_id: str = ""
    group_id: str = ""
    policy_id: str = ""
    builder: str = "prefix_merging"
    builder_options: Any = field(default_factory=dict)
    is_specified: bool = False
    leases: Mapping[str, LeaseRow] = field(default_factory=dict)

    def with_lease(self, lease_id: str, lease: LeaseRow) -> SessionRow:
        """The row with one lease replaced."""
        return replace(self, leases={**self.leases, lease_id: lease})

    def with_spec(self, spec: SessionSpec) -> SessionRow:
        """The row with what a SessionSpec says; the first spec stays, all are equal."""
        if self.is_specified:
            return self
        return replace(
            self,
            task_id=spec.task_id,
            group_id=spec.group_id,
            policy_id=spec.policy_id,
            builder=spec.builder,
            builder_options=spec.builder_options,
            is_specified=True,
        )

    def to_bytes(self) -> bytes:
        """The row as the table holds it."""
        return orjson.dumps(self, option=orjson.OPT_NON_STR_KEYS)

    @classmethod
    def from_bytes(cls, raw: bytes | None) -> SessionRow:
        """The row behind a table's value; an empty one for None."""
        if raw is None:
            return cls()
        data = orjson.loads(raw)
        leases = {lease_id: _lease(lease) for lease_id, lease in data.pop("leases").items()}
        return cls(**data, leases=leases)


def _lease(data: dict[str, Any]) -> LeaseRow:
    writers = {
        int(number): WriterRow(**{**row, "beyond": tuple(row["beyond"])}) for number, row in data.pop("writers").items()
    }
    sealed = data.pop("sealed")
    late = data.pop("late")
    # A row of an older release only counts what came late.
    late = () if isinstance(late, int) else tuple((int(writer), int(seq)) for writer, seq in late)
    return LeaseRow(**data, writers=writers, sealed=None if sealed is None else tuple(sealed), late=late)
