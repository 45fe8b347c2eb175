"""One group by hand that has everything an adapter meets: a fork, masked tokens, versions that change, a cut, a failure."""

from __future__ import annotations

from schemas import arrays, ids
from schemas.records import Boundary, ScoredTrajectory, SessionSpec, Status, Trace, TurnSpan, VersionSpan
from tests.trainer_sink.scored import scored
from trainer_sink.groups import Group, Source

SIZE = 4
SAMPLING = {"temperature": 0.7}


def trace(
    index: int, prompt: list[int], response: list[int], mask: list[int], turns: list[TurnSpan], **more: object
) -> Trace:
    """A trace whose logprob at position i is -(i + 1) / 8, where the mask is 1."""
    logprobs = [-(i + 1) / 8 * m for i, m in enumerate(mask)]
    return Trace(
        index=index,
        prompt_ids=arrays.pack_ids(prompt),
        response_ids=arrays.pack_ids(response),
        loss_mask=arrays.pack_mask(mask),
        logprobs=arrays.pack_logprobs(logprobs),
        turns=turns,
        **more,  # type: ignore[arg-type]
    )


def turn(start: int, end: int, *versions: tuple[str, int, int], trained: bool = True) -> TurnSpan:
    """The tokens [start, end) of a response, sampled by versions at places counted from the reply's own beginning."""
    spans = [VersionSpan(version=v, start=a, end=b) for v, a, b in versions]
    return TurnSpan(completion_id=f"c{start}", start=start, end=end, is_trained=trained, version_spans=spans)


def forked() -> ScoredTrajectory:
    """Session 0: reward 1, two traces. The second shares the first reply, with mask 0 there."""
    main = trace(
        0,
        [11, 12, 13],
        [21, 22, 31, 32, 23, 24],  # 31 and 32 are the tool's
        [1, 1, 0, 0, 1, 1],
        [turn(0, 2, ("4", 0, 2)), turn(4, 6, ("4", 0, 1), ("5", 1, 2))],
        finish_reason="stop",
        messages=[{"role": "user", "content": "go"}, {"role": "assistant", "content": "went"}],
    )
    branch = trace(
        1,
        [11, 12, 13],
        [21, 22, 33, 25],
        [0, 0, 0, 1],
        [turn(0, 2, ("4", 0, 2), trained=False), turn(3, 4, ("5", 0, 1))],
        branch="branch",
        parent_trace=0,
        finish_reason="stop",
    )
    return _scored(0, [main, branch], reward=1.0)


def failed() -> ScoredTrajectory:
    """Session 1: its harness died, nothing was captured, nobody graded it."""
    return _scored(1, [], status=Status.FAILED, boundary=Boundary.HARNESS, reward=None, error="exit 1")


def cut() -> ScoredTrajectory:
    """Session 2: reward 0, its one reply hit the length limit."""
    only = trace(0, [11, 12], [26, 27, 28], [1, 1, 1], [turn(0, 3, ("5", 0, 3))], finish_reason="length")
    return _scored(2, [only], reward=0.0)


def plain() -> ScoredTrajectory:
    """Session 3: reward 0.5, one reply, and a tool's answer that nothing followed."""
    only = trace(0, [11, 12, 13, 14], [29, 34], [1, 0], [turn(0, 1, ("5", 0, 1))], finish_reason="stop")
    return _scored(3, [only], reward=0.5)


def group() -> Group:
    """The four sessions."""
    sessions = (forked(), failed(), cut(), plain())
    spec = sessions[0].spec
    assert spec is not None
    return Group(ids.group_id("task"), spec, SIZE, sessions, tuple(Source(0, n) for n in range(SIZE)))


def _scored(index: int, traces: list[Trace], **more: object) -> ScoredTrajectory:
    reward = more.get("reward")
    credited = [
        Trace(**{f: getattr(t, f) for f in Trace.__dataclass_fields__} | {"reward": reward, "weight": 1 / len(traces)})
        for t in traces
    ]
    spec = {"sampling": SAMPLING, "metadata": {"repo": "r"}, "task_id": "task"}
    return scored(
        "task",
        index,
        SIZE,
        traces=credited,
        spec=spec,
        tokenizer_digest="tok",
        logprobs_mode="temperature",
        **more,  # type: ignore[arg-type]
    )


def spec_of(one: ScoredTrajectory) -> SessionSpec:
    """Its spec, which is there."""
    assert one.spec is not None
    return one.spec
