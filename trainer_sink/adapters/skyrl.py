"""SkyRL: groups as a `GeneratorOutput`, what a `GeneratorInterface.generate` returns.

Follows `skyrl.train.generators.base` of SkyRL 0.3.0. Without forks one row is one session. With forks the output has SkyRL's
step-wise form (`generator.step_wise_trajectories=true`): a session's traces stand together under one trajectory id, the
last one is marked, and SkyRL takes the advantage from that last row and gives it to all rows of the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas.records import ScoredTrajectory
from trainer_sink.groups import Group
from trainer_sink.sequences import TrainingSequence, mean_reward

# An engine's words. SkyRL's overlong filtering masks whatever isn't "stop", so a harness' own words don't go there.
_STOP: Final = "stop"
_LENGTH: Final = "length"


@dataclass(frozen=True, slots=True)
class TrajectoryID:
    """SkyRL's class of this name, field by field; pass the real one as `trajectory_id` where SkyRL is installed."""

    instance_id: str
    repetition_id: int

    def to_string(self) -> str:
        """As SkyRL prints it."""
        return f"{self.instance_id}_{self.repetition_id}"


def output_of(
    groups: Sequence[tuple[Group, Sequence[TrainingSequence]]],
    *,
    step_wise: bool | None = None,
    ungraded: float | None = None,
    filler_id: int = 0,
    trajectory_id: type[Any] = TrajectoryID,
) -> dict[str, Any]:
    """A `GeneratorOutput` of whole groups with their sequences, sessions in index order.

    `step_wise` None means: where a session has several traces. False refuses such sessions (ValueError), as SkyRL would: it
    wants one row for each prompt. Each session has a row: one without a sequence is a masked row of one `filler_id` token, with its
    own reward, else `ungraded`, else the mean of its group, which leaves the baseline where it is.
    """
    rows: list[dict[str, Any]] = []
    for group, sequences in groups:
        by_session: dict[str, list[TrainingSequence]] = {}
        for sequence in sequences:
            by_session.setdefault(sequence.session_id, []).append(sequence)
        default = mean_reward(sequences) if ungraded is None else ungraded
        for place, one in enumerate(group.scored):
            index = place if one.spec is None else one.spec.index
            ident = trajectory_id(instance_id=group.group_id, repetition_id=index)
            own = by_session.get(one.session_id)
            rows += [_row(s, ident, s is own[-1]) for s in own] if own else [_filler(one, ident, default, filler_id)]
    if not rows:
        raise ValueError("there is no session: give at least one group")
    has_forks = not all(row["is_last_step"] for row in rows)
    if has_forks and step_wise is False:
        raise ValueError(
            "some sessions have several traces, which SkyRL takes in step-wise form only: set "
            "generator.step_wise_trajectories=true and step_wise=True, or leave branches out of sequences_of"
        )
    output: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    if not (has_forks if step_wise is None else step_wise):
        output["is_last_step"] = None
    return output | {
        "rollout_metrics": _metrics(groups),
        "trajectory_generation_times": None,
        "trajectory_time_splits": None,
        "rollout_expert_indices": None,
        "pixel_values": None,
        "image_grid_thw": None,
    }


def _row(sequence: TrainingSequence, ident: Any, is_last: bool) -> dict[str, Any]:
    return {
        "prompt_token_ids": sequence.prompt_ids.tolist(),
        "response_ids": sequence.response_ids.tolist(),
        "rewards": sequence.reward,
        "loss_masks": sequence.loss_mask.tolist(),
        "stop_reasons": _LENGTH if sequence.is_truncated else _STOP,
        "rollout_logprobs": sequence.logprobs.tolist(),
        "trajectory_ids": ident,
        "is_last_step": is_last,
        "env_metrics": {
            "session_id": sequence.session_id,
            "trace_index": sequence.trace_index,
            "weight": sequence.weight,
            "advantage": sequence.advantage,
            "versions": list(sequence.versions),
        },
    }


def _filler(one: ScoredTrajectory, ident: Any, ungraded: float, token: int) -> dict[str, Any]:
    return {
        "prompt_token_ids": [token],
        "response_ids": [token],
        "rewards": ungraded if one.verdict is None else one.verdict,
        "loss_masks": [0],
        "stop_reasons": "error",
        "rollout_logprobs": [0.0],
        "trajectory_ids": ident,
        "is_last_step": True,
        "env_metrics": {"session_id": one.session_id, "error": one.error},
    }


def _metrics(groups: Sequence[tuple[Group, Sequence[TrainingSequence]]]) -> Mapping[str, float]:
    sequences = [s for _, own in groups for s in own]
    sessions = sum(len(group.scored) for group, _ in groups)
    return {
        "polynya/sessions": float(sessions),
        "polynya/traces": float(len(sequences)),
        "polynya/trained_tokens": float(sum(s.trained_tokens for s in sequences)),
    }
