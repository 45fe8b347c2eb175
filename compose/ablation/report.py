"""The ablation's tables: our figures, each under its own name, beside what was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from compose.ablation.arms import PUBLISHED, Arm
from compose.ablation.captured import CapturedSet
from compose.ablation.live import LiveResult
from compose.ablation.offline import ArmResult
from compose.ablation.simulated import SimulatedResult

_LAST: Final = 5


def set_line(name: str, captured: CapturedSet) -> str:
    """What a set holds, in one line."""
    calls = sorted(captured.calls.values())
    rewards = captured.rewards
    mean_calls, mean_reward = sum(calls) / max(1, len(calls)), sum(rewards) / max(1, len(rewards))
    left = ", ".join(f"{count} {reason}" for reason, count in captured.left_out.items()) or "none"
    return (
        f"{name}: {len(calls)} sessions in {len(captured.groups['per_request'])} groups, {sum(calls)} calls "
        f"({mean_calls:.1f} a session, at most {max(calls, default=0)}), mean reward {mean_reward:.2f}, left out: {left}"
    )


def offline_table(name: str, results: Sequence[ArmResult]) -> Table:
    """One captured set, trained once by each arm."""
    table = Table(title=f"{name}: the same calls, trained once by each arm", title_justify="left")
    for heading in (
        "arm",
        "traces",
        "updates",
        "trained tokens",
        "computed tokens",
        "trainer CPU s",
        "longest ¼ of sessions",
    ):
        table.add_column(heading, justify="left" if heading == "arm" else "right", no_wrap=heading == "arm")
    for one in results:
        table.add_row(
            one.arm.name,
            str(one.traces),
            str(one.trainer_updates),
            f"{one.trained_tokens:,}",
            f"{one.computed_tokens:,}",
            f"{one.trainer_cpu_s:.1f}",
            f"{one.longest_quarter_share:.0%}",
        )
    return table


def live_table(results: Sequence[LiveResult]) -> Table:
    """Short live runs."""
    table = Table(title="live: the real Pi, the same start, tasks and seeds", title_justify="left")
    for heading in ("arm", "reward", "steps", "traces", "trainer s", "wall s", "engine busy"):
        table.add_column(heading, justify="left" if heading == "arm" else "right", no_wrap=heading == "arm")
    for one in results:
        table.add_row(
            one.arm.name,
            _rise(one.rewards),
            str(len(one.rewards)),
            str(one.sequences),
            f"{one.trainer_s:.1f}",
            f"{one.wall_s:.0f}",
            f"{one.engine_busy_share:.0%}",
        )
    return table


def simulated_table(results: Sequence[SimulatedResult]) -> Table:
    """Learning in the simulated environment."""
    table = Table(
        title="simulated environment: the same start, tasks and seeds; a step is 32 sessions", title_justify="left"
    )
    headings = ("arm", "reward", "calls a session", "traces", "updates", "computed tokens")
    for heading in (*headings, "trainer CPU s", "wall s", "engine busy"):
        table.add_column(heading, justify="left" if heading == "arm" else "right", no_wrap=heading == "arm")
    for one in results:
        calls = one.calls_per_session
        table.add_row(
            one.arm.name,
            _rise(one.rewards),
            f"{_mean(calls[:2]):.1f} → {_mean(calls[-_LAST:]):.1f}",
            str(one.traces),
            str(one.trainer_updates),
            f"{one.computed_tokens:,}",
            f"{one.trainer_cpu_s:.1f}",
            f"{one.wall_s:.0f}",
            f"{one.engine_busy_share:.0%}",
        )
    return table


def ratios(results: Sequence[ArmResult]) -> dict[str, float]:
    """`per_request` over `prefix_merging`, both with the outcome broadcast, as it was published."""
    by_arm = {one.arm: one for one in results}
    flat, merged = by_arm[Arm("per_request", "per_trace")], by_arm[Arm("prefix_merging", "per_trace")]
    return {
        "trainer_updates": flat.trainer_updates / max(1, merged.trainer_updates),
        "computed_tokens": flat.computed_tokens / max(1, merged.computed_tokens),
        "trainer_cpu_s": flat.trainer_cpu_s / merged.trainer_cpu_s if merged.trainer_cpu_s else 0.0,
    }


def published_line() -> str:
    """What was published, to stand beside it."""
    flat, merged = PUBLISHED["per_request"], PUBLISHED["prefix_merging"]
    return (
        f"published (Polar, 4B on 8 GPUs, long coding sessions): {flat['trainer_updates']:.0f} against "
        f"{merged['trainer_updates']:.0f} updates (x{flat['trainer_updates'] / merged['trainer_updates']:.1f}), wall-clock x5.39, "
        f"rollout GPUs busy {flat['rollout_gpu_utilisation']:.0%} against {merged['rollout_gpu_utilisation']:.0%}"
    )


def result_json(
    sets: Mapping[str, tuple[CapturedSet, Sequence[ArmResult]]],
    live: Sequence[LiveResult],
    simulated: Sequence[SimulatedResult] = (),
    **facts: Any,
) -> dict[str, Any]:
    """`result.json`."""
    return {
        **facts,
        "sets": {
            name: {
                "sessions": len(captured.calls),
                "groups": len(captured.groups["per_request"]),
                "calls": sum(captured.calls.values()),
                "mean_reward": _mean(captured.rewards),
                "left_out": dict(captured.left_out),
                "versions": list(captured.versions),
                "arms": [one.to_json() for one in results],
                "per_request_over_prefix_merging": ratios(results),
            }
            for name, (captured, results) in sets.items()
        },
        "live": [one.to_json() for one in live],
        "simulated": [one.to_json() for one in simulated],
        "published": {**PUBLISHED, "trainer_wall_clock_ratio": 5.39},
    }


def _rise(rewards: Sequence[float]) -> str:
    """The first two steps' mean reward, the last five's, and the difference."""
    first, last = _mean(rewards[:2]), _mean(rewards[-_LAST:])
    return f"{first:.2f} → {last:.2f} ({last - first:+.2f})"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
