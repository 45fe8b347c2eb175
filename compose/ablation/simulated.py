"""The arms learning in a simulated environment: the CPU engine, the builders and the trainer are real, harness, proxy and log aren't there.

Every session is the asking agent's (`asking_agent.py`), played in this process: a session that fails goes on being asked, so length and
failure go together. A step is 32 sessions under the present weights, then as many updates as their traces make batches, then the
engine gets the new weights: what a trainer that waits for its rollouts does, in minutes instead of hours.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from compose.ablation.arms import Arm
from compose.ablation.asking_agent import AGAIN, CALLS_PER_REQUEST, MAX_TOKENS, SYSTEM, TOOLS
from compose.ablation.offline import batches, settings_of
from compose.ablation.sessions import TIMES
from compose.cpu_engine.protocol import GenerateRequest, SamplingParams
from compose.cpu_engine.sequence import Sequence
from compose.cpu_engine.service import Engine
from compose.cpu_engine.settings import EngineSettings
from compose.demo import family
from schemas import arrays, ids
from schemas.records import (
    CompletionDelivery,
    CompletionRecord,
    CompletionState,
    ScoredTrajectory,
    SessionSpec,
    Status,
    Trajectory,
    VersionSpan,
)
from stream_processors.builders import build
from trainer_sink.groups import Group
from trainer_sink.reference.checkpoints import OPTIMIZER, RunState
from trainer_sink.sequences import sequences_of

GROUPS: Final = 8
SAMPLES: Final = 4
WARMUP_STEPS: Final = 6
_CALL: Final = re.compile(r"<tool_call>\n(.*)\n</tool_call>", re.DOTALL)
_END: Final = "<|im_end|>"
POLICY: Final = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedResult:
    """One arm's run; lists have one number for each step."""

    arm: Arm
    rewards: tuple[float, ...]
    calls_per_session: tuple[float, ...]
    traces: int
    trainer_updates: int
    trained_tokens: int
    computed_tokens: int
    trainer_cpu_s: float
    wall_s: float
    engine_busy_share: float
    """Seconds in which the engine computed, of the run's wall-clock."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "arm": self.arm.name}


class Environment:
    """Sessions of the asking agent against an engine in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._encode = engine.tokenizer.encode

    async def session(
        self, combination: family.Combination, spec: SessionSpec, seed: int, arm: Arm
    ) -> ScoredTrajectory:
        """One session, built as the arm says and rewarded as the demo rewards."""
        session_id = ids.session_id(spec.group_id, spec.index)
        lease_id = ids.lease_id(session_id, 1)
        files: dict[str, str] = {}
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": combination.instruction}]
        text = self._engine.tokenizer.render(messages, TOOLS, {"add_generation_prompt": True})
        prompt = self._encode(text)
        facts: list[CompletionRecord | CompletionDelivery] = []
        for _ in range(1 + TIMES):
            for _ in range(CALLS_PER_REQUEST):
                reply = await self._reply(prompt, seed + len(facts))
                facts += self._facts(session_id, lease_id, len(facts) // 2 + 1, prompt, reply)
                said = self._engine.tokenizer.decode(reply.output_ids, skip_special_tokens=False)
                prompt = [*prompt, *reply.output_ids, *self._encode("\n" if said.endswith(_END) else f"{_END}\n")]
                if (result := tool_result(said, files)) is None:
                    break
                prompt += self._turn(f"<tool_response>\n{result}\n</tool_response>")
            if files.get(combination.file, "").strip() == combination.word:
                break
            prompt += self._turn(AGAIN)
        built = build(arm.builder, {}, facts, POLICY)
        trajectory = Trajectory(
            session_id=session_id, group_id=spec.group_id, lease_id=lease_id, traces=built.traces, counts=built.counts
        )
        return ScoredTrajectory(
            session_id=session_id,
            group_id=spec.group_id,
            task_id=spec.task_id,
            policy_id=POLICY,
            status=Status.COMPLETED,
            reward=family.reward(combination.word, files.get(combination.file)),
            trajectory=trajectory,
            spec=spec,
        )

    async def _reply(self, prompt: list[int], seed: int) -> Sequence:
        params = SamplingParams(max_new_tokens=MAX_TOKENS, sampling_seed=seed)
        sequence = await self._engine.begin(GenerateRequest(input_ids=prompt, sampling_params=params), {})
        while not sequence.is_over:
            sequence.changed.clear()
            await sequence.changed.wait()
        if sequence.error is not None:
            raise RuntimeError(f"the engine failed: {sequence.error}")
        return sequence

    def _turn(self, content: str) -> list[int]:
        """A user's turn behind an ended reply, as the demo's template writes it, and the beginning of the next reply."""
        return self._encode(f"<|im_start|>user\n{content}{_END}\n<|im_start|>assistant\n")

    @staticmethod
    def _facts(
        session_id: str, lease_id: str, seq: int, prompt: list[int], reply: Sequence
    ) -> tuple[CompletionRecord, CompletionDelivery]:
        place: dict[str, Any] = {
            "session_id": session_id,
            "lease_id": lease_id,
            "writer": 1,
            "call_seq": seq,
            "completion_id": ids.completion_id(lease_id, 1, seq),
        }
        record = CompletionRecord(
            **place,
            policy_id=POLICY,
            state=CompletionState.FINISHED,
            suffix_ids=arrays.pack_ids(prompt),
            prompt_len=len(prompt),
            output_ids=arrays.pack_ids(reply.output_ids),
            logprobs=arrays.pack_logprobs(reply.logprobs),
            logprobs_mode="temperature",
            finish_reason=reply.finish.type if reply.finish else "",
            version_spans=[VersionSpan(version=v, start=start, end=end) for v, start, end in reply.spans],
            request_digest=f"{seq}",
            trainable=True,
        )
        return record, CompletionDelivery(**place, delivered=True)


def tool_result(said: str, files: dict[str, str]) -> str | None:
    """What a tool says to a reply's call, which changes `files`; None for a reply without a whole call."""
    found = _CALL.search(said)
    if found is None:
        return None
    try:
        call = json.loads(found[1])
        path = str(call["arguments"]["path"])
        if call["name"] == "read":
            return files.get(path, f"error: no such file: {path}")
        files[path] = str(call["arguments"]["content"])
    except (ValueError, KeyError, TypeError):
        return None  # as a harness that takes a broken call for text
    return f"wrote {path}"


async def simulate(
    arm: Arm,
    model: Path,
    output_dir: Path,
    *,
    steps: int,
    sequences_per_update: int,
    seed: int,
    on_step: Callable[[str], None],
) -> SimulatedResult:
    """Train one arm from `model` for `steps` steps. The same seed gives every arm the same tasks, and the same first step."""
    from trainer_sink.reference.learner import Learner

    settings = settings_of(arm, model, output_dir, seed=seed).model_copy(update={"warmup_steps": WARMUP_STEPS})
    engine = Engine.load(EngineSettings(model=model, weight_version="0"))
    learner = Learner.load(settings, None)
    stepping = asyncio.create_task(engine.scheduler.run(), name="simulated-engine")
    draws = family.draws(seed)
    environment = Environment(engine)
    rewards: list[float] = []
    lengths: list[float] = []
    traces = updates = trained = computed = 0
    trainer_cpu_s, began = 0.0, time.monotonic()
    try:
        for step in range(1, steps + 1):
            combinations = [next(draws) for _ in range(GROUPS)]
            groups = await asyncio.gather(
                *(_group(environment, c, arm, step=step, n=n, seed=seed) for n, c in enumerate(combinations))
            )
            sequences = [s for group in groups for s in sequences_of(group, settings.credit)]
            cpu = time.process_time()
            for batch in batches(sequences, sequences_per_update):
                told = await asyncio.to_thread(learner.update, batch, step, str(step - 1), lambda *_: None)
                updates += 1 if told["sequences"] else 0
                trained += told["tokens"]
                computed += told["computed_tokens"]
            trainer_cpu_s += time.process_time() - cpu
            traces += len(sequences)
            weights = output_dir / f"weights-{step % 2}"
            (weights / OPTIMIZER.parent).mkdir(parents=True, exist_ok=True)
            state = RunState(step=step, sink={}, weights_digest="", from_version=str(step - 1))
            await asyncio.to_thread(learner.filler(state), weights)
            await engine.scheduler.load_weights(weights, version=str(step), flush_cache=True)
            scored = [one for group in groups for one in group.scored]
            rewards.append(sum(one.reward or 0.0 for one in scored) / len(scored))
            lengths.append(sum(one.trajectory.counts.calls for one in scored if one.trajectory) / len(scored))
            on_step(
                f"  step {step:2d}  reward {rewards[-1]:.2f}  calls a session {lengths[-1]:.1f}  updates so far {updates}"
            )
        wall_s = time.monotonic() - began
    finally:
        stepping.cancel()
        await asyncio.gather(stepping, return_exceptions=True)
    return SimulatedResult(
        arm=arm,
        rewards=tuple(rewards),
        calls_per_session=tuple(lengths),
        traces=traces,
        trainer_updates=updates,
        trained_tokens=trained,
        computed_tokens=computed,
        trainer_cpu_s=trainer_cpu_s,
        wall_s=wall_s,
        engine_busy_share=engine.scheduler.busy_s / wall_s,
    )


async def _group(
    environment: Environment, combination: family.Combination, arm: Arm, *, step: int, n: int, seed: int
) -> Group:
    name = f"simulated-{seed}-{step}-{n}"
    group_id = ids.group_id(name)
    specs = [
        SessionSpec(task_id=name, group_id=group_id, index=i, group_size=SAMPLES, policy_id=POLICY)
        for i in range(SAMPLES)
    ]
    base = ((seed * 1_000 + step) * 100 + n) * 1_000
    scored = await asyncio.gather(
        *(environment.session(combination, spec, base + spec.index * 100, arm) for spec in specs)
    )
    return Group(group_id, specs[0], SAMPLES, tuple(scored), ())
