"""Groups as a fleet would score them, sampled from the weights that an engine was last told to load."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from schemas import arrays
from schemas.records import ScoredTrajectory, Trace, TurnSpan, VersionSpan
from tests.trainer_sink.scored import POLICY, scored

PROMPT = (5, 6, 7)


def sampled_group(
    name: str, weights: Path, version: str, *, size: int = 4, tokens: int = 3, reward: float | None = None
) -> list[ScoredTrajectory]:
    """One group; a session's reward is the share of even tokens, or `reward`. The same name and weights give the same tokens."""
    from trainer_sink.reference.model import PolicyModel

    model = PolicyModel.load(weights, is_trained=False)
    generator = torch.Generator().manual_seed(sum(name.encode()))
    made = [_session(name, i, size, model, version, tokens=tokens, generator=generator) for i in range(size)]
    return made if reward is None else [dataclasses.replace(one, reward=reward) for one in made]


def _session(
    name: str, index: int, size: int, model: Any, version: str, *, tokens: int, generator: torch.Generator
) -> ScoredTrajectory:
    ids, logprobs = list(PROMPT), []
    with torch.no_grad():
        for _ in range(tokens):
            row = model.module(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(torch.multinomial(row.exp(), 1, generator=generator)))
            logprobs.append(float(row[ids[-1]]))
    response = ids[len(PROMPT) :]
    trace = Trace(
        prompt_ids=arrays.pack_ids(PROMPT),
        response_ids=arrays.pack_ids(response),
        loss_mask=arrays.pack_mask([1] * tokens),
        logprobs=arrays.pack_logprobs(logprobs),
        turns=[
            TurnSpan(
                completion_id=f"{name}-{index}",
                end=tokens,
                is_trained=True,
                version_spans=[VersionSpan(version=version, start=0, end=tokens)],
            )
        ],
    )
    reward = sum(token % 2 == 0 for token in response) / tokens
    return scored(name, index, size, traces=[trace], reward=reward, spec={"policy_id": POLICY})
