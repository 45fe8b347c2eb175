"""The trajectory of a session that still runs, from the calls captured so far."""

from __future__ import annotations

from schemas.records import CompletionDelivery, CompletionRecord, SessionSpec, Trajectory


def trajectory_so_far(
    session_id: str,
    spec: SessionSpec | None,
    completions: list[CompletionRecord],
    deliveries: list[CompletionDelivery],
) -> Trajectory | None:
    """What the assembler would build now for the newest lease; None without a call."""
    if not completions:
        return None
    from stream_processors.assembler.core import build_trajectory

    lease = completions[-1].lease_id
    mine = [c for c in completions if c.lease_id == lease]
    return build_trajectory(session_id, lease, spec or SessionSpec(), mine, deliveries)
