"""What the reference trainer needs of an engine: weights that it pushes are served, under the version it gave, with its own logprobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bus.memory import MemoryBus
from schemas.records import VersionSpan
from tests.conformance.conftest import TOLERANCE, Target
from trainer_sink.policies import PolicyWriter
from trainer_sink.reference import GrpoSettings
from trainer_sink.reference.grpo import update
from trainer_sink.reference.model import PolicyModel
from trainer_sink.sequences import TrainingSequence

PROMPT = list(range(2000, 2060))


def sequence(reply: Any, name: str) -> TrainingSequence:
    """The reply as a trainer gets it."""
    triples = reply["meta_info"]["output_token_logprobs"]
    spans = tuple(VersionSpan(**span) for span in reply["meta_info"]["weight_versions"])
    return TrainingSequence(
        session_id=name,
        group_id="g",
        task_id="t",
        prompt_ids=np.array(PROMPT, np.int32),
        response_ids=np.array(reply["output_ids"], np.int32),
        loss_mask=np.ones(len(triples), np.uint8),
        logprobs=np.array([triple[0] for triple in triples], np.float32),
        version_spans=spans,
        temperature=0.8,
        advantage=1.0,
    )


async def test_a_push_is_sampled_from_with_the_trainers_own_logprobs(
    engine: Any, target: Target, tmp_path: Path
) -> None:
    """Every token of two replies after the push: recomputed by the trainer from the pushed checkpoint, within the tolerance."""
    torch.set_num_threads(1)
    await engine.generate(
        input_ids=PROMPT, sampling_params={"max_new_tokens": 1}
    )  # something of the old weights to forget
    pushed = Path(target.weights[1])
    async with MemoryBus() as bus, PolicyWriter(bus, "p", "trainer", engines=[target.url]) as writer:
        version = await writer.push(pushed)
    asked = {"temperature": 0.8, "max_new_tokens": 24, "ignore_eos": True}
    replies = [await engine.generate(input_ids=PROMPT, return_logprob=True, sampling_params=asked) for _ in range(2)]
    sequences = [sequence(reply, f"s{i}") for i, reply in enumerate(replies)]
    assert [s.versions for s in sequences] == [(version,), (version,)]
    model = PolicyModel.load(pushed)
    settings = GrpoSettings(model=pushed, output_dir=tmp_path, epochs=1)
    stats = update(model, torch.optim.SGD(model.module.parameters(), lr=0.0), sequences, settings, version=version)
    assert stats.checked_tokens == 48
    assert stats.max_logprob_diff <= TOLERANCE, stats.where
