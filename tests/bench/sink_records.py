"""Scored trajectories as a coding agent leaves them, and small ones; the same every time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from schemas import arrays, ids
from schemas.codec import Encoded, encode
from schemas.records import (
    CallDisposition,
    CallState,
    Counts,
    RewardValue,
    ScoredTrajectory,
    SessionSpec,
    Status,
    Trace,
    Trajectory,
    TurnSpan,
    VersionSpan,
)

POLICY = "bench"
GROUP_SIZE = 8
TURNS = 10
SAMPLED = 150
OBSERVED = 100
PROMPT = 2000


def trajectory(number: int, group_size: int) -> ScoredTrajectory:
    """One trace of ten turns, with its messages and tools: 4,500 tokens, about 45 kB."""
    one = SAMPLED + OBSERVED
    n = TURNS * one
    mask = ([1] * SAMPLED + [0] * OBSERVED) * TURNS
    trace = Trace(
        prompt_ids=arrays.pack_ids(np.arange(PROMPT)),
        response_ids=arrays.pack_ids(np.arange(n)),
        loss_mask=arrays.pack_mask(mask),
        logprobs=arrays.pack_logprobs(np.where(np.array(mask) == 1, -0.25, 0.0)),
        turns=[
            TurnSpan(
                completion_id=f"call-{k}",
                start=k * one,
                end=k * one + SAMPLED,
                is_trained=True,
                version_spans=[VersionSpan(version="3", start=0, end=SAMPLED)],
            )
            for k in range(TURNS)
        ],
        messages=[message for k in range(TURNS) for message in _turn(k)],
        tools=[_tool(name) for name in ("bash", "read", "write", "edit")],
    )
    calls = [
        CallState(
            completion_id=f"call-{k}", call_seq=k, disposition=CallDisposition.TRAINED, trace=0, is_delivered=True
        )
        for k in range(TURNS)
    ]
    return _scored(number, group_size, [trace], calls)


def small(number: int, group_size: int) -> ScoredTrajectory:
    """One reply of eight tokens to a prompt of eight."""
    trace = Trace(
        prompt_ids=arrays.pack_ids(range(8)),
        response_ids=arrays.pack_ids(range(8)),
        loss_mask=arrays.pack_mask([1] * 8),
        logprobs=arrays.pack_logprobs([-0.25] * 8),
        turns=[TurnSpan(start=0, end=8, is_trained=True, version_spans=[VersionSpan(version="3", start=0, end=8)])],
    )
    return _scored(number, group_size, [trace], [])


def encoded(make: Callable[[int, int], ScoredTrajectory], count: int, group_size: int) -> Iterator[Encoded]:
    """So many records, whole groups: those of the first group, under other names, since encoding 100,000 takes minutes."""
    first = [encode(make(number, group_size)) for number in range(group_size)]
    old = [_names(number, group_size) for number in range(group_size)]
    for number in range(count):
        model, names = first[number % group_size], _names(number, group_size)
        pairs = list(zip(old[number % group_size], names, strict=True))
        yield Encoded(
            model.topic,
            _renamed(model.key, pairs),
            _renamed(model.value, pairs),
            [(name, _renamed(value, pairs)) for name, value in model.headers],
        )


def _names(number: int, group_size: int) -> tuple[bytes, ...]:
    """What tells a record from its like; of one length each, so that a value stays well-formed."""
    task_id = f"task-{number // group_size:08d}"
    group_id = ids.group_id(task_id)
    return task_id.encode(), group_id.encode(), ids.session_id(group_id, number % group_size).encode()


def _renamed(value: bytes, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    for before, after in pairs:
        value = value.replace(before, after)
    return value


def _scored(number: int, group_size: int, traces: list[Trace], calls: list[CallState]) -> ScoredTrajectory:
    task_id = f"task-{number // group_size:08d}"
    group_id = ids.group_id(task_id)
    session_id = ids.session_id(group_id, number % group_size)
    trainable = sum(t.loss_mask.count(1) for t in traces)
    counts = Counts(calls=len(calls), trained=len(calls), traces=len(traces), trainable_tokens=trainable)
    spec = SessionSpec(
        task_id=task_id, group_id=group_id, index=number % group_size, group_size=group_size, policy_id=POLICY
    )
    return ScoredTrajectory(
        session_id=session_id,
        group_id=group_id,
        task_id=task_id,
        policy_id=POLICY,
        trajectory_id=session_id,
        status=Status.COMPLETED,
        reward=float(number % 2),
        rewards=[RewardValue(name="reward", value=float(number % 2), grader="command")],
        trajectory=Trajectory(
            trajectory_id=session_id,
            session_id=session_id,
            group_id=group_id,
            traces=traces,
            calls=calls,
            counts=counts,
        ),
        spec=spec,
    )


def _turn(k: int) -> list[dict[str, object]]:
    call = {"name": "bash", "arguments": json.dumps({"command": "ls -la /work"})}
    return [
        {
            "role": "assistant",
            "content": "I look at the file that the traceback names. " * 14,
            "tool_calls": [{"id": f"call-{k}", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": f"call-{k}", "content": "-rw-r--r-- 1 root\n" * 16},
    ]


def _tool(name: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    text = "Does what its name says, with a path. " * 12
    return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}
