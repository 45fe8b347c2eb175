"""What a storm prints at its end. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.records import SessionEventType
from tests.chaos.checks import Evidence, Verdict

SHOWN = 60
"""Violations that are printed; all of them stand in violations.txt."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What only the driver knows."""

    seed: int
    sessions: int
    duration_s: float
    root: str
    hits: Mapping[tuple[str, str], int] = field(default_factory=dict)
    left_out: int = 0
    restarts: int = 0


def summary(facts: Facts, seen: Evidence, verdict: Verdict) -> str:
    """The last words of a storm: what was done, what came of it, what must not be."""
    log = seen.log
    hows = Counter[str]()
    parts = Counter[str]()
    for (name, how), times in facts.hits.items():
        hows[how] += times
        parts[name] += times
    ends = Counter(
        f"{e[0].status}" + (f"/{e[0].boundary}" if e[0].boundary != "none" else "") for e in log.ends.values()
    )
    attempts = Counter(e[0].attempt for e in log.ends.values())
    calls = {c.completion_id: c.state for c in log.completions}
    won = [s.trajectory for s in log.last_scored.values() if s.trajectory is not None]
    fates = Counter[str]()
    for trajectory in log.last_built.values():
        fates["trained"] += trajectory.counts.trained
        fates["context"] += trajectory.counts.context
        fates.update(trajectory.counts.untrainable)
    take_overs = {(o.lease_id, o.writer) for o in log.opened if o.takes_over}
    expired = {(e.session_id, e.lease_id) for e in log.events if e.type is SessionEventType.LEASE_EXPIRED}
    revised = sum(s.revision > 1 for s in log.last_scored.values())
    lines = [
        f"seed {facts.seed}: {facts.sessions} sessions in {facts.duration_s:.0f} s",
        f"hits: {_list(hows)}; {facts.left_out} left out, {facts.restarts} restarts",
        f"  by part: {_list(parts)}",
        f"sessions: {_list(ends)}; by attempts: {_list(attempts)}",
        f"leases: {len({o.lease_id for o in log.opened})} opened, {len(expired)} expired, {len(take_overs)} take-overs",
        f"calls: {len(calls)} ({_list(Counter(map(str, calls.values())))})",
        f"  {len(seen.ledger.generated)} generated, {len(seen.ledger.nonces)} received in full by a harness",
        f"  counted: {_list(fates)}",
        f"delivered: {len(log.last_scored)} sessions ({len(log.scored)} records), {revised} of them revised",
        f"  {len(won)} with a trajectory; {len(seen.groups)} groups at the trainer",
        f"logs, journals and brokers' data: {facts.root}",
    ]
    if verdict.is_clean:
        return "\n".join([*lines, "no violation"])
    shown = [f"  {violation}" for violation in verdict.violations[:SHOWN]]
    rest = len(verdict.violations) - len(shown)
    return "\n".join(
        [
            *lines,
            f"{len(verdict.violations)} violations:",
            *shown,
            *([f"  … and {rest} more"] if rest > 0 else []),
            f"repeat with: make chaos SEED={facts.seed} SESSIONS={facts.sessions}",
        ]
    )


def _list(numbers: Mapping[str, int] | Counter[int]) -> str:
    return (
        ", ".join(f"{name} {number}" for name, number in sorted(numbers.items(), key=lambda p: (-p[1], str(p[0]))))
        or "none"
    )
