"""TRL: what the `rollout_func` of a `GRPOTrainer` returns, made from groups. Follows trl 1.16.0.

A `GRPOTrainer` takes exactly `num_generations` rows for each group, subtracts the group's mean from the rewards itself, and weighs
every row alike. Rows that only fill up have `env_mask` 0 and reward None, which TRL leaves out of the mean. Without `use_vllm` TRL
ignores `logprobs` and takes each row as on-policy; importance weights need its vLLM mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from trainer_sink.errors import SinkError
from trainer_sink.groups import Group
from trainer_sink.sequences import TrainingSequence, without_sequences

Credited = tuple[Group, Sequence[TrainingSequence]]

# Sums of float advantages of one group, whose size is a few: what is smaller is rounding.
_NOTHING = 1e-6


class TooManyRowsError(SinkError, ValueError):
    """A group has more rows than the trainer's `num_generations`."""


def rollout_of(groups: Iterable[Credited], *, num_generations: int, filler_id: int = 0) -> dict[str, list[Any]]:
    """The dict of a `rollout_func`: `num_generations` rows for each group.

    | key | what, for each row |
    |---|---|
    | prompt_ids, completion_ids | token ids; a filler has one `filler_id` in both |
    | logprobs | the behaviour policy's, 0.0 where the mask is 0 |
    | env_mask | 1 on trained tokens |
    | reward | the trace's; a session's own where it has no trace; None on other fillers |
    | credit | weight x advantage; None on fillers |
    | weight, advantage, session_id, task_id, weight_versions | as on the sequence |

    TRL hands the last ones to reward functions: `reward` or `credit` below. Credits of a group sum to 0, so that TRL's own
    mean leaves them as they are; where a session without a trace has a part in that sum, or leave-one-out over traces doesn't
    have it, a filler carries the rest. TooManyRowsError when a group doesn't fit.
    """
    rows: list[dict[str, Any]] = []
    for group, sequences in groups:
        own = [_row(s) for s in sequences]
        own += [
            _filler(filler_id, one.session_id, one.task_id, one.verdict) for one in without_sequences(group, sequences)
        ]
        rest = -sum(s.weight * s.advantage for s in sequences)
        if abs(rest) > _NOTHING:
            if len(own) == len(sequences):
                own.append(_filler(filler_id, "", group.spec.task_id, None))
            own[-1]["credit"] = rest
        if len(own) > num_generations:
            raise TooManyRowsError(
                f"group {group.group_id} has {len(own)} rows ({len(sequences)} traces of {len(group.scored)} sessions) and "
                f"num_generations is {num_generations}: raise it to the sessions of a group and the forks that you expect, or "
                "leave branches out of sequences_of"
            )
        missing = num_generations - len(own)
        rows += own + [_filler(filler_id, "", group.spec.task_id, None) for _ in range(missing)]
    if not rows:
        raise ValueError("there is no group: give as many as the trainer asked for")
    return {name: [row[name] for row in rows] for name in rows[0]}


def rollout_func(
    take: Callable[[int], Iterable[Credited]], *, filler_id: int | None = None
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """A `rollout_func` that asks `take(n)` for the n groups of a step.

    The prompts that TRL passes in are only counted: what was rolled out is decided by whoever submits tasks, so the trainer's
    data set is a list of empty prompts. `filler_id` is the tokenizer's padding by default.
    """

    def roll(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        size = int(trainer.num_generations if trainer.model.training else trainer.num_generations_eval)
        wanted, left = divmod(len(prompts), size)
        if left:
            raise ValueError(
                f"TRL asks this process for {len(prompts)} rows, which isn't a multiple of num_generations {size}: a group "
                "would be torn; make per_device_train_batch_size x steps_per_generation a multiple of it"
            )
        filler = trainer.processing_class.pad_token_id if filler_id is None else filler_id
        groups = list(take(wanted))
        if len(groups) != wanted:
            raise ValueError(f"TRL asks for {wanted} groups and got {len(groups)}: wait for more, or end the training")
        return rollout_of(groups, num_generations=size, filler_id=filler)

    return roll


def reward(*, completions: Sequence[Any], **fields: Any) -> list[float | None]:
    """A reward function of TRL that passes on the rewards of the record; TRL computes the advantages."""
    return _passed("reward", completions, fields)


def credit(*, completions: Sequence[Any], **fields: Any) -> list[float | None]:
    """A reward function of TRL that passes on weight x advantage; use it with `scale_rewards="none"`.

    So TRL trains with this library's credit: 1 / traces of the session, leave-one-out, and what `CreditRule` says.
    """
    return _passed("credit", completions, fields)


def _passed(name: str, completions: Sequence[Any], fields: dict[str, Any]) -> list[float | None]:
    values = fields.get(name)
    if values is None or len(values) != len(completions):
        raise ValueError(f"the rollouts have no {name!r}: use this reward function with trainer_sink's rollout_func")
    return list(values)


def _row(sequence: TrainingSequence) -> dict[str, Any]:
    return {
        "prompt_ids": sequence.prompt_ids.tolist(),
        "completion_ids": sequence.response_ids.tolist(),
        "logprobs": sequence.logprobs.tolist(),
        "env_mask": sequence.loss_mask.tolist(),
        "reward": sequence.reward,
        "credit": sequence.weight * sequence.advantage,
        "weight": sequence.weight,
        "advantage": sequence.advantage,
        "session_id": sequence.session_id,
        "task_id": sequence.task_id,
        "weight_versions": list(sequence.versions),
    }


def _filler(token: int, session_id: str, task_id: str, given: float | None) -> dict[str, Any]:
    """A row without a trained token; TRL wants at least one completion token in each."""
    return {
        "prompt_ids": [token],
        "completion_ids": [token],
        "logprobs": [0.0],
        "env_mask": [0],
        "reward": given,
        "credit": None,
        "weight": 0.0,
        "advantage": 0.0,
        "session_id": session_id,
        "task_id": task_id,
        "weight_versions": [],
    }
