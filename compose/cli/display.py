"""Trajectories for people: a table of sessions, and one trace with its loss mask in colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.table import Table
from rich.text import Text

from schemas.arrays import unpack_ids, unpack_mask
from schemas.records import ScoredTrajectory, Trace

TRAINED_STYLE = "black on green"
CONTEXT_STYLE = "dim"


def results_table(scored: Iterable[ScoredTrajectory]) -> Table:
    """One row per session: traces, turns, tokens, trainable tokens, reward, status."""
    table = Table(title="trajectories")
    for name in ("session", "harness", "status", "traces", "turns", "tokens", "trainable", "reward"):
        table.add_column(name, justify="left" if name in ("session", "harness", "status") else "right")
    for result in sorted(scored, key=lambda s: (s.task_id, s.spec.index if s.spec else 0)):
        counts = result.trajectory.counts if result.trajectory else None
        traces = result.trajectory.traces if result.trajectory else []
        tokens = sum((len(t.prompt_ids) + len(t.response_ids)) // 4 for t in traces)
        status = (
            str(result.status) if result.boundary in ("none", "UNKNOWN") else f"{result.status} ({result.boundary})"
        )
        table.add_row(
            result.session_id[:8],
            result.spec.harness if result.spec else "",
            status,
            str(len(traces)),
            str(sum(len(t.turns) for t in traces)),
            str(tokens),
            str(counts.trainable_tokens if counts else 0),
            "-" if result.reward is None else f"{result.reward:g}",
        )
    return table


def masked_trace(
    trace: Trace, decode: Callable[[Sequence[int]], str], *, prompt_tail: int = 60, limit: int = 1200
) -> Text:
    """A trace's text: the end of the prompt dim, context dim, trained tokens green; at most `limit` response tokens."""
    text = Text()
    prompt = unpack_ids(trace.prompt_ids)
    if len(prompt) > prompt_tail:
        text.append(f"… {len(prompt) - prompt_tail} prompt tokens …\n", style="italic dim")
    text.append(decode(prompt[-prompt_tail:].tolist()), style=CONTEXT_STYLE)
    ids, mask = unpack_ids(trace.response_ids)[:limit], unpack_mask(trace.loss_mask)[:limit]
    start = 0
    while start < len(ids):
        end = start
        while end < len(ids) and mask[end] == mask[start]:
            end += 1
        text.append(decode(ids[start:end].tolist()), style=TRAINED_STYLE if mask[start] else CONTEXT_STYLE)
        start = end
    return text
