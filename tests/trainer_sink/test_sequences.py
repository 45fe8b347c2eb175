"""Sequences: what a group gives to training, with its credit, and what it doesn't give under which name."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from schemas import arrays
from schemas.records import Boundary, ScoredTrajectory, Status
from tests.trainer_sink.hand_made import failed, forked, group, plain
from trainer_sink.credit import CreditRule
from trainer_sink.groups import Group
from trainer_sink.sequences import TornTraceError, sequences_of


def with_sessions(*sessions: ScoredTrajectory) -> Group:
    return dataclasses.replace(group(), scored=sessions)


def test_a_group_by_hand() -> None:
    """Four sequences of three sessions; the failed session has neither a sequence nor, without a rule, a reward."""
    counts: Counter[str] = Counter()
    sequences = sequences_of(group(), CreditRule(advantage="mean_baseline"), counts=counts)
    assert [(s.index, s.trace_index, s.branch) for s in sequences] == [
        (0, 0, "main"),
        (0, 1, "branch"),
        (2, 0, "main"),
        (3, 0, "main"),
    ]
    assert [s.weight for s in sequences] == [0.5, 0.5, 1.0, 1.0]
    assert [s.advantage for s in sequences] == [0.5, 0.5, -0.5, 0.0]
    assert counts == {"unrewarded": 1}
    first = sequences[0]
    assert first.prompt_ids.tolist() == [11, 12, 13]
    assert first.response_ids.tolist() == [21, 22, 31, 32, 23, 24]
    assert first.loss_mask.tolist() == [1, 1, 0, 0, 1, 1]
    assert first.logprobs.tolist() == [-0.125, -0.25, 0, 0, -0.625, -0.75]
    assert (first.prompt_ids.dtype, first.loss_mask.dtype, first.logprobs.dtype) == (np.int32, np.uint8, np.float32)
    assert (first.length, first.trained_tokens, first.turns, first.trace_count) == (9, 4, 2, 2)
    assert (first.temperature, first.tokenizer_digest, first.logprobs_mode) == (0.7, "tok", "temperature")


def test_versions_stand_where_their_tokens_stand() -> None:
    """Spans count from the response's beginning; a reply trained in another trace says nothing here."""
    main, branch, *_ = sequences_of(group())
    assert [(s.version, s.start, s.end) for s in main.version_spans] == [("4", 0, 2), ("4", 4, 5), ("5", 5, 6)]
    assert main.token_versions().tolist() == [4, 4, -1, -1, 4, 5]
    assert main.versions == ("4", "5")
    assert branch.token_versions().tolist() == [-1, -1, -1, 5]


def test_a_failed_session_counts_by_rule() -> None:
    """With `failed_reward` 0 the baseline is that of four sessions: (1 + 0 + 0 + 0.5) / 4."""
    rule = CreditRule(advantage="mean_baseline", failed_reward=0.0)
    assert [s.advantage for s in sequences_of(group(), rule)] == [0.625, 0.625, -0.375, 0.125]


@pytest.mark.parametrize("boundary", [Boundary.PROVIDER, Boundary.SANDBOX, Boundary.EVALUATOR])
def test_what_the_policy_did_not_cause_is_never_its_failure(boundary: Boundary) -> None:
    """`failed_reward` isn't given to a session that an outage ended."""
    ours = dataclasses.replace(failed(), boundary=boundary)
    counts: Counter[str] = Counter()
    sequences_of(with_sessions(forked(), ours, plain()), CreditRule(failed_reward=0.0), counts=counts)
    assert counts["unrewarded"] == 1


def test_a_session_out_of_time_is_trained_when_the_rule_gives_it_a_reward() -> None:
    """Its traces were sampled like any others; only the verdict is missing."""
    late = dataclasses.replace(forked(), status=Status.TIMEOUT, boundary=Boundary.HARNESS, reward=None)
    assert late.trajectory is not None
    traces = [dataclasses.replace(t, reward=None) for t in late.trajectory.traces]
    late = dataclasses.replace(late, trajectory=dataclasses.replace(late.trajectory, traces=traces))
    assert [s.index for s in sequences_of(with_sessions(late, plain()))] == [3]
    sequences = sequences_of(with_sessions(late, plain()), CreditRule(failed_reward=-1.0))
    assert [(s.index, s.reward, s.is_truncated) for s in sequences] == [
        (0, -1.0, True),
        (0, -1.0, True),
        (3, 0.5, False),
    ]


def test_a_failed_session_with_a_verdict_stands_in_the_baseline() -> None:
    """A reward counts, whether or not there is a trace to train."""
    graded = dataclasses.replace(failed(), reward=-1.0)
    counts: Counter[str] = Counter()
    (one,) = sequences_of(with_sessions(graded, plain()), CreditRule(advantage="leave_one_out"), counts=counts)
    assert (one.advantage, counts) == (1.5, {"no_traces": 1})


def test_rewards_by_trace_win_over_the_outcome() -> None:
    """A grader may judge each trace; the session's outcome stays on record."""
    one = forked()
    assert one.trajectory is not None
    traces = [dataclasses.replace(t, reward=r) for t, r in zip(one.trajectory.traces, (1.0, 0.2), strict=True)]
    one = dataclasses.replace(one, trajectory=dataclasses.replace(one.trajectory, traces=traces))
    sequences = sequences_of(with_sessions(one, plain()), CreditRule(advantage="none"))
    assert [(s.reward, s.session_reward, s.advantage) for s in sequences] == [
        (1.0, 1.0, 1.0),
        (0.2, 1.0, 0.2),
        (0.5, 0.5, 0.5),
    ]


def test_a_branch_left_out_gives_its_weight_to_the_others() -> None:
    """A session's sequences always weigh 1 together."""
    counts: Counter[str] = Counter()
    sequences = sequences_of(group(), leave_out={"branch"}, counts=counts)
    assert [(s.index, s.weight, s.trace_count) for s in sequences] == [(0, 1.0, 1), (2, 1.0, 1), (3, 1.0, 1)]
    assert counts["branch.branch"] == 1


def test_a_trace_without_trained_tokens_is_no_sequence() -> None:
    """It would weigh on the average and teach nothing."""
    one = plain()
    assert one.trajectory is not None
    masked = [dataclasses.replace(t, loss_mask=bytes(2)) for t in one.trajectory.traces]
    one = dataclasses.replace(one, trajectory=dataclasses.replace(one.trajectory, traces=masked))
    counts: Counter[str] = Counter()
    assert {s.index for s in sequences_of(with_sessions(forked(), one), counts=counts)} == {0}
    assert counts["untrained_trace"] == 1


def test_a_group_without_variance_is_left_out_by_name() -> None:
    """`drop` gives nothing, and says so."""
    counts: Counter[str] = Counter()
    same = with_sessions(forked(), dataclasses.replace(forked(), session_id="other"))
    assert sequences_of(same, CreditRule(zero_variance="drop"), counts=counts) == []
    assert counts["zero_variance"] == 1
    assert [s.advantage for s in sequences_of(same, CreditRule(zero_variance="keep"))] == [0.0] * 4


def test_a_reward_that_is_no_number_is_no_reward() -> None:
    """NaN would make every sibling's advantage NaN."""
    counts: Counter[str] = Counter()
    broken = dataclasses.replace(plain(), reward=math.nan)
    assert all(math.isfinite(s.advantage) for s in sequences_of(with_sessions(forked(), broken), counts=counts))
    assert counts["invalid_reward"] == 1
    assert sequences_of(with_sessions(failed())) == []


def test_a_torn_trace_is_refused() -> None:
    """Arrays that don't belong together are neither padded nor cut."""
    one = plain()
    assert one.trajectory is not None
    torn = [dataclasses.replace(t, logprobs=arrays.pack_logprobs([-1.0])) for t in one.trajectory.traces]
    one = dataclasses.replace(one, trajectory=dataclasses.replace(one.trajectory, traces=torn))
    with pytest.raises(TornTraceError, match="2 response ids, 2 mask values and 1 logprobs"):
        sequences_of(with_sessions(one))
