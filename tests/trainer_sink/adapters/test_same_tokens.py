"""Whatever the group looks like, every adapter trains the same tokens with the same logprobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import arrays, ids
from schemas.records import SessionSpec, Status, Trace, TurnSpan
from tests.trainer_sink.scored import scored
from trainer_sink.adapters import prime_rl, skyrl, slime, trl, verl
from trainer_sink.adapters.torch_tensors import packed, padded
from trainer_sink.groups import Group, Source
from trainer_sink.sequences import TrainingSequence, sequences_of

Tokens = Counter[tuple[int, float]]
TOKEN = st.tuples(st.integers(0, 99), st.integers(0, 1), st.integers(1, 64))
TRACE = st.tuples(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.lists(TOKEN, min_size=1, max_size=6))
SESSIONS = st.lists(st.tuples(st.lists(TRACE, max_size=3), st.integers(0, 3)), min_size=1, max_size=4)


def built(sessions: list[tuple[list[tuple[list[int], list[tuple[int, int, int]]]], int]]) -> Group:
    """A group of sessions, each with its traces and a reward; one without traces failed."""
    made = []
    for index, (traces, reward) in enumerate(sessions):
        kept = [
            Trace(
                index=i,
                prompt_ids=arrays.pack_ids(prompt),
                response_ids=arrays.pack_ids([t for t, _, _ in response]),
                loss_mask=arrays.pack_mask([m for _, m, _ in response]),
                logprobs=arrays.pack_logprobs([-n / 64 * m for _, m, n in response]),
                turns=[TurnSpan(start=0, end=len(response), is_trained=True)],
            )
            for i, (prompt, response) in enumerate(traces)
        ]
        status = Status.COMPLETED if kept else Status.FAILED
        made.append(scored("g", index, len(sessions), traces=kept, status=status, reward=reward if kept else None))
    spec = SessionSpec(task_id="g", group_id=ids.group_id("g"), group_size=len(made))
    return Group(spec.group_id, spec, len(made), tuple(made), tuple(Source(0, n) for n in range(len(made))))


def trained(token_ids: Iterable[int], mask: Iterable[float], logprobs: Iterable[float]) -> Tokens:
    return Counter((int(t), float(p)) for t, m, p in zip(token_ids, mask, logprobs, strict=True) if m)


def total(parts: Iterable[Tokens]) -> Tokens:
    return sum(parts, Counter())


def wanted(sequences: Sequence[TrainingSequence]) -> Tokens:
    return total(trained(s.response_ids, s.loss_mask, s.logprobs) for s in sequences)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SESSIONS)
def test_every_adapter_trains_the_same_tokens(
    sessions: list[tuple[list[tuple[list[int], list[tuple[int, int, int]]]], int]],
) -> None:
    """Forks, failures, masked replies: no adapter loses or adds a trained token."""
    group = built(sessions)
    sequences = sequences_of(group)
    expected = wanted(sequences)

    nested = list(chain(*slime.samples_of(group, sequences, group_index=0, first_index=0)))
    assert expected == total(
        trained(s["tokens"][-s["response_length"] :], s["loss_mask"], s["rollout_log_probs"]) for s in nested
    )
    assert {s["rollout_id"] for s in nested} == set(range(len(group.scored)))

    rows = trl.rollout_of([(group, sequences)], num_generations=len(sequences) + len(group.scored) + 1)
    columns = (rows["completion_ids"], rows["env_mask"], rows["logprobs"])
    assert expected == total(trained(*row) for row in zip(*columns, strict=True))

    output = skyrl.output_of([(group, sequences)])
    columns = (output["response_ids"], output["loss_masks"], output["rollout_logprobs"])
    assert expected == total(trained(*row) for row in zip(*columns, strict=True))

    samples = prime_rl.samples_of(sequences)
    assert expected == total(trained(s["token_ids"], s["mask"], s["logprobs"]) for s in samples)

    tensors = packed(sequences, max_tokens=12)
    assert expected == total(trained(r["input_ids"], r["loss_mask"], r["logprobs"]) for r in tensors)
    if sequences:
        batch = padded(sequences, pad_id=0)
        flat = (batch[name].flatten() for name in ("input_ids", "loss_mask", "logprobs"))
        assert expected == trained(*flat)
        data, _, _ = verl.data_of(sequences, pad_id=0)
        flat = (data[name].flatten() for name in ("responses", "response_mask", "rollout_log_probs"))
        assert expected == trained(*flat)
