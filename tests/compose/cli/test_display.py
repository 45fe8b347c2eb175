"""What people see of a trajectory: the table's numbers and the coloured mask."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from compose.cli.display import CONTEXT_STYLE, TRAINED_STYLE, masked_trace, results_table
from schemas.arrays import pack_ids, pack_mask
from schemas.records import Boundary, Counts, ScoredTrajectory, SessionSpec, Status, Trace, Trajectory, TurnSpan

TRACE = Trace(
    prompt_ids=pack_ids([1, 2, 3]),
    response_ids=pack_ids([10, 11, 50, 20]),
    loss_mask=pack_mask([1, 1, 0, 1]),
    turns=[TurnSpan(), TurnSpan()],
)


def text_of(table: object) -> str:
    """A renderable as plain text."""
    console = Console(file=StringIO(), width=160)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_table_counts_traces_turns_and_tokens() -> None:
    """One row: 1 trace, 2 turns, 7 tokens, 3 of them trainable."""
    scored = ScoredTrajectory(
        session_id="0123456789",
        status=Status.COMPLETED,
        reward=0.5,
        spec=SessionSpec(harness="pi"),
        trajectory=Trajectory(traces=[TRACE], counts=Counts(trainable_tokens=3)),
    )
    row = next(line for line in text_of(results_table([scored])).splitlines() if "01234567" in line)
    assert [c.strip() for c in row.strip("│┃ ").split("│")] == [
        "01234567",
        "pi",
        "completed",
        "1",
        "2",
        "7",
        "3",
        "0.5",
    ]


def test_a_failed_session_names_its_boundary_and_has_no_reward() -> None:
    """No trajectory, no reward: a dash and the boundary."""
    scored = ScoredTrajectory(session_id="f" * 10, status=Status.FAILED, boundary=Boundary.SANDBOX)
    row = next(line for line in text_of(results_table([scored])).splitlines() if "ffffffff" in line)
    assert "failed (sandbox)" in row
    assert row.strip("│ ").endswith("-")


def test_the_mask_is_coloured_run_by_run() -> None:
    """Sampled runs are green, everything else is dim, and no token is lost."""
    text = masked_trace(TRACE, lambda ids: "".join(f"<{i}>" for i in ids), prompt_tail=2)
    spans = [(text.plain[s.start : s.end], s.style) for s in text.spans]
    assert spans == [
        ("… 1 prompt tokens …\n", "italic dim"),
        ("<2><3>", CONTEXT_STYLE),
        ("<10><11>", TRAINED_STYLE),
        ("<50>", CONTEXT_STYLE),
        ("<20>", TRAINED_STYLE),
    ]
