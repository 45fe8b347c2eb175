"""A real `GRPOTrainer` takes a step on groups that the CPU engine sampled, the builder built and the sink gave out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch

from bus.memory import MemoryBus
from schemas import ids
from schemas.arrays import unpack_ids
from schemas.records import ScoredTrajectory, SessionSpec, Status, Trajectory, VersionSpan
from stream_processors.builders import build
from tests.stream_processors.helpers import call, delivered
from trainer_sink import GroupConsumer
from trainer_sink.adapters.trl import Credited, credit, rollout_func
from trainer_sink.credit import CreditRule
from trainer_sink.sequences import TrainingSequence, sequences_of

pytestmark = pytest.mark.deep

POLICY = "policy"
GROUPS, SESSIONS, ROWS = 2, 3, 4
RULE = CreditRule(advantage="leave_one_out", failed_reward=0.0)
LEARNING_RATE = 0.5
TOOL = [151_657, 17, 18, 151_658]  # what a tool said, between special tokens


async def _generate(
    session: aiohttp.ClientSession, url: str, prompt: list[int], seed: int
) -> tuple[list[int], list[float], str]:
    params = {"max_new_tokens": 5, "temperature": 1.0, "ignore_eos": True, "sampling_seed": seed}
    body = {"input_ids": prompt, "sampling_params": params, "return_logprob": True}
    async with session.post(f"{url}/generate", json=body) as answer:
        meta = (await answer.json())["meta_info"]
    rows = meta["output_token_logprobs"]
    return [row[1] for row in rows], [row[0] for row in rows], str(meta["weight_version"])


async def _session(http: aiohttp.ClientSession, url: str, task: str, index: int) -> ScoredTrajectory:
    """Two calls with a tool's answer between them, captured as the proxy would; the first session of each group forks."""
    group = ids.group_id(task)
    name = ids.session_id(group, index)
    lease = ids.lease_id(name, 1)
    calls: list[Any] = []
    prompt = [151_644, 872, 100 + index, 151_645, 198]
    prompts = [prompt]
    for seq in range(1, 4 if index == 0 else 3):
        sampled, logprobs, version = await _generate(http, url, prompts[-1], seed=1000 * index + seq + len(task))
        fields = {"version_spans": [VersionSpan(version=version, start=0, end=len(sampled))], "policy_id": POLICY}
        calls.append(call(seq, prompts[-1], sampled, lease=lease, session=name, logprobs=logprobs, **fields))
        # The second and the third call both go on from the first one's answer, with different words from the tool.
        base = prompt + unpack_ids(calls[0].output_ids).tolist()
        prompts.append([*base, *TOOL[:1], 40 + seq, *TOOL[2:]])
    built = build("prefix_merging", {}, delivered(*calls), POLICY)
    reward = float(np.mean([unpack_ids(c.output_ids) % 2 for c in calls]))
    spec = SessionSpec(
        task_id=task, group_id=group, index=index, group_size=SESSIONS, policy_id=POLICY, harness="shell"
    )
    failed = index == SESSIONS - 1 and task == "b"
    return ScoredTrajectory(
        session_id=name,
        group_id=group,
        task_id=task,
        policy_id=POLICY,
        trajectory_id=ids.trajectory_id(name, lease, "prefix_merging"),
        status=Status.FAILED if failed else Status.COMPLETED,
        reward=None if failed else reward,
        trajectory=None
        if failed
        else Trajectory(session_id=name, group_id=group, traces=built.traces, counts=built.counts),
        spec=spec,
    )


async def _groups(checkpoint: Path) -> list[Credited]:
    """Groups of the CPU engine's own sampling, through the bus and the consumer."""
    from compose.cpu_engine.server import serving
    from compose.cpu_engine.service import Engine
    from compose.cpu_engine.settings import EngineSettings

    engine = Engine.load(EngineSettings(model=checkpoint))
    async with MemoryBus() as bus:
        async with serving(engine) as url, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
            for task in ("a", "b"):
                for index in range(SESSIONS):
                    await bus.publish(await _session(http, url, task, index))
        async with GroupConsumer(bus, "trl", policy_id=POLICY, until_end=True) as groups, asyncio.timeout(60):
            taken = [(group, sequences_of(group, RULE)) async for group in groups]
    return sorted(taken, key=lambda pair: pair[0].spec.task_id)  # partitions are read in any order


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    """The tiny model's directory."""
    from compose.cpu_engine.tiny_model import ensure_tiny_model

    return ensure_tiny_model()


@pytest.fixture(scope="module")
def taken(checkpoint: Path) -> list[Credited]:
    """Two groups: one with a fork, one with a fork and a failed session."""
    return asyncio.run(_groups(checkpoint))


@pytest.fixture(scope="module", autouse=True)
def quiet() -> Iterator[None]:
    """TRL warns of its experimental interface, and torch is to leave the other core alone."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        torch.set_num_threads(1)
        yield
    torch.set_num_threads(threads)


Step = tuple[Any, Any, dict[str, float]]


@pytest.fixture(scope="module")
def step(checkpoint: Path, taken: list[Credited], tmp_path_factory: pytest.TempPathFactory) -> Step:
    """One step on the groups as they were captured."""
    return _trained(checkpoint, tmp_path_factory.mktemp("trl"), taken)


def _trained(checkpoint: Path, output: Path, groups: list[Credited]) -> Step:
    """(the model before, after one step of plain SGD, what TRL logged)."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    before = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32),
        reward_funcs=[credit],
        args=GRPOConfig(
            output_dir=str(output),
            num_generations=ROWS,
            per_device_train_batch_size=GROUPS * ROWS,
            max_steps=1,
            logging_steps=1,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            optim="sgd",
            max_grad_norm=0.0,
            scale_rewards="none",
            beta=0.0,
            temperature=1.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": [""] * GROUPS}),
        processing_class=AutoTokenizer.from_pretrained(checkpoint),
        rollout_func=rollout_func(lambda count: groups[:count]),
    )
    trainer.train()
    logged: dict[str, float] = {}
    for entry in trainer.state.log_history:
        logged |= entry
    return before, trainer.model, logged


def _logprobs(model: Any, sequence: TrainingSequence) -> torch.Tensor:
    """The model's logprobs of the response, shape (R,)."""
    row = torch.tensor([*sequence.prompt_ids.tolist(), *sequence.response_ids.tolist()])
    logits = model(row[None]).logits[0, len(sequence.prompt_ids) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, row[len(sequence.prompt_ids) :, None])[:, 0]


def test_a_step_is_the_gradient_of_our_credit_on_our_tokens(step: Step, taken: list[Credited]) -> None:
    """TRL's update equals a policy gradient by hand: weight x advantage on trained tokens, nothing on the tool's or the fillers'."""
    sequences = [s for _, own in taken for s in own]
    assert [len(own) for _, own in taken] == [4, 3]  # a fork and two sessions; a fork, a session, and one that failed
    assert any(s.loss_mask.min() == 0 and s.loss_mask.max() == 1 for s in sequences)
    before, after, logged = step

    assert np.isfinite(logged["loss"])
    assert logged["rewards/credit/mean"] == pytest.approx(0.0, abs=1e-6)
    worst = max(
        float(
            (_logprobs(before, s).detach() - torch.from_numpy(s.logprobs.copy()))[torch.from_numpy(s.loss_mask > 0)]
            .abs()
            .max()
        )
        for s in sequences
    )
    assert worst < 1e-4  # the captured logprobs are this model's

    tokens = sum(s.trained_tokens for s in sequences)
    loss = -sum(
        s.weight
        * s.advantage
        * (_logprobs(before, s) * torch.from_numpy(s.loss_mask.astype(np.float32))).sum()
        / tokens
        for s in sequences
    )
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    moved = 0.0
    for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True):
        assert old.grad is not None, name
        wanted = -LEARNING_RATE * old.grad
        torch.testing.assert_close(
            new.detach() - old.detach(), wanted, rtol=1e-3, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
        moved = max(moved, float(wanted.abs().max()))
    assert moved > 1e-4  # it did learn something


def test_trl_ignores_logprobs_without_vllm(step: Step, checkpoint: Path, taken: list[Credited], tmp_path: Path) -> None:
    """As docs/adapters.md says: other behaviour logprobs make the same step. Once this fails, TRL has learned to use them."""
    wrong = [
        (group, [dataclasses.replace(s, logprobs=np.full_like(s.logprobs, -9.0) * s.loss_mask) for s in own])
        for group, own in taken
    ]
    _, other, _ = _trained(checkpoint, tmp_path, wrong)
    for one, same in zip(step[1].parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, same, rtol=0, atol=1e-7)
