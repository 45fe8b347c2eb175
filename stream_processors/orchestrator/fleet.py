"""The fleet as the orchestrator sees it: the latest heartbeat of every worker, and what each was last seen to hold.

A view in memory, rebuilt by reading; whether it is fresh enough to conclude from a *missing* beat is part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.records import Heartbeat, Stage


@dataclass(slots=True)
class Node:
    """One incarnation of a worker, as last heard at `heard_at` (our clock, UTC epoch ms)."""

    beat: Heartbeat
    heard_at: int
    is_full: bool = False
    """Whether it declined something since that beat."""


@dataclass(slots=True)
class FleetView:
    """All workers by (node_id, incarnation)."""

    nodes: dict[tuple[str, str], Node] = field(default_factory=dict)
    held_at: dict[tuple[str, str, str, int], int] = field(default_factory=dict)
    """(node_id, incarnation, session_id, attempt) → when a beat last listed it."""
    grading_at: dict[tuple[str, str, str, int], int] = field(default_factory=dict)
    """The same key → when a beat first listed it as being graded."""
    fresh_since: int | None = None
    """Since when every beat has been read as it came; None while that can't be said (start, outage, new partitions)."""

    def take(self, beat: Heartbeat, heard_at: int) -> None:
        """Note a heartbeat of a worker; those of other roles don't matter here."""
        if beat.role != "worker":
            return
        key = (beat.node_id, beat.incarnation)
        known = self.nodes.get(key)
        if known is not None and known.beat.seq > beat.seq:
            return
        if known is None:
            # Its earlier incarnations are gone, though they were heard a moment ago: one that isn't beats again.
            for (node_id, _), other in self.nodes.items():
                other.is_full = other.is_full or node_id == beat.node_id
        self.nodes[key] = Node(beat, heard_at)
        for held in beat.holds:
            name = (*key, held.session_id, held.attempt)
            self.held_at[name] = heard_at
            if held.stage is Stage.POSTRUN:
                self.grading_at.setdefault(name, heard_at)

    def mark_full(self, worker_id: str, incarnation: str) -> None:
        """A worker declined: it gets nothing more before its next beat."""
        node = self.nodes.get((worker_id, incarnation))
        if node is not None:
            node.is_full = True

    def is_alive(self, worker_id: str, incarnation: str, now: int, ttl_ms: int) -> bool:
        """Whether this incarnation was heard within the time to live."""
        node = self.nodes.get((worker_id, incarnation))
        return node is not None and now - node.heard_at <= ttl_ms

    def is_fresh(self, now: int, ttl_ms: int) -> bool:
        """Whether the view has been fresh for a whole time to live, so that silence means something."""
        return self.fresh_since is not None and now - self.fresh_since >= ttl_ms

    def last_held(self, worker_id: str, incarnation: str, session_id: str, attempt: int) -> int:
        """When a beat of this incarnation last listed the session (0: never)."""
        return self.held_at.get((worker_id, incarnation, session_id, attempt), 0)

    def graded_since(self, worker_id: str, incarnation: str, session_id: str, attempt: int) -> int:
        """When this incarnation began to grade the session, as its beats tell (0: it hasn't)."""
        return self.grading_at.get((worker_id, incarnation, session_id, attempt), 0)

    def awaits_grading(self, worker_id: str, incarnation: str, session_id: str, attempt: int) -> bool:
        """Whether the session stands in line for its grading there: sealed, and nothing is free to grade it."""
        node = self.nodes.get((worker_id, incarnation))
        if node is None or node.beat.free_postrun > 0:
            return False
        found = (held for held in node.beat.holds if (held.session_id, held.attempt) == (session_id, attempt))
        return any(held.stage is Stage.SEALED for held in found)

    def workers(self, now: int, ttl_ms: int) -> Iterable[Node]:
        """The workers that live and take sessions."""
        for (worker_id, incarnation), node in self.nodes.items():
            if self.is_alive(worker_id, incarnation, now, ttl_ms) and not (node.is_full or node.beat.is_draining):
                yield node

    def forget(self, before: int) -> None:
        """Drop what wasn't heard since then."""
        self.nodes = {key: node for key, node in self.nodes.items() if node.heard_at >= before}
        self.held_at = {key: at for key, at in self.held_at.items() if at >= before}
        self.grading_at = {key: at for key, at in self.grading_at.items() if key in self.held_at}
