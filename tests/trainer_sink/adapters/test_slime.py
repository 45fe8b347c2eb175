"""slime's `Sample`, field by field, from a group with a fork, a failure, a cut and two versions in one reply."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import chain
from typing import Any

import pytest

from schemas.records import Status
from tests.trainer_sink.adapters.formats import check
from tests.trainer_sink.hand_made import cut, failed, forked, group, plain
from trainer_sink.adapters.slime import samples_of, status_of
from trainer_sink.credit import CreditRule
from trainer_sink.sequences import sequences_of

# slime 0.3.1, slime/utils/types.py: the fields of `Sample` that this adapter fills, with their types; the others keep their defaults.
SAMPLE = {
    "group_index": int,
    "index": int,
    "rollout_id": int,
    "prompt": list[dict[str, str]],
    "tokens": list[int],
    "response": str,
    "response_length": int,
    "label": str | None,
    "reward": float,
    "loss_mask": list[int],
    "weight_versions": list[str],
    "rollout_log_probs": list[float],
    "remove_sample": bool,
    "status": str,
    "metadata": dict[str, Any],
    "session_id": str,
    "spec_info": dict[str, int],
    "prefix_cache_info": dict[str, int],
}
STATUSES = {"pending", "completed", "truncated", "aborted", "failed"}
RULE = CreditRule(advantage="mean_baseline")


def test_every_sample_has_the_fields_of_the_format() -> None:
    """Names, types and lengths; the whole is JSON, so it travels as it is."""
    nested = samples_of(group(), sequences_of(group(), RULE), group_index=7, first_index=40)
    for sample in list(chain(*nested)):
        check(SAMPLE, sample)
        assert sample["status"] in STATUSES
        assert len(sample["loss_mask"]) == len(sample["rollout_log_probs"]) == sample["response_length"]
        assert 0 < sample["response_length"] < len(sample["tokens"])
    assert json.loads(json.dumps(nested)) == nested


def test_a_fork_is_one_rollout() -> None:
    """Sessions are numbered, and siblings share their session's number: slime's loss counts them as one rollout."""
    nested = samples_of(group(), sequences_of(group(), RULE), group_index=7, first_index=40)
    assert [len(session) for session in nested] == [2, 1, 1, 1]
    assert [s["rollout_id"] for s in list(chain(*nested))] == [40, 40, 41, 42, 43]
    assert [s["index"] for s in list(chain(*nested))] == [40, 40, 41, 42, 43]
    assert {s["group_index"] for s in list(chain(*nested))} == {7}
    assert nested[0][0]["session_id"] == nested[0][1]["session_id"] == group().scored[0].session_id


def test_tokens_masks_logprobs_and_versions_by_hand() -> None:
    """What the tool said has mask 0 and logprob 0.0; a version change within a reply shows as one more entry."""
    main, branch = samples_of(group(), sequences_of(group(), RULE), group_index=0, first_index=0)[0]
    assert main["tokens"] == [11, 12, 13, 21, 22, 31, 32, 23, 24]
    assert main["response_length"] == 6
    assert main["loss_mask"] == [1, 1, 0, 0, 1, 1]
    assert main["rollout_log_probs"] == [-0.125, -0.25, 0.0, 0.0, -0.625, -0.75]
    assert main["weight_versions"] == ["4", "4", "5"]
    assert (main["prompt"], main["response"]) == ([{"role": "user", "content": "go"}], "went")
    assert (branch["loss_mask"], branch["weight_versions"]) == ([0, 0, 0, 1], ["5"])
    assert branch["metadata"]["polynya"]["branch"] == "branch"


def test_a_session_that_gave_nothing_keeps_its_place() -> None:
    """A step of slime counts rollouts per step, so the failed session is there, out of the loss."""
    (filler,) = samples_of(group(), sequences_of(group(), RULE), group_index=0, first_index=0, filler_id=3)[1]
    assert (filler["tokens"], filler["response_length"], filler["loss_mask"]) == ([3, 3], 1, [0])
    assert (filler["remove_sample"], filler["status"], filler["reward"]) == (True, "failed", 0.5)
    assert filler["metadata"]["polynya"]["error"] == "exit 1"


@pytest.mark.parametrize(
    ("status", "named"),
    [
        (Status.TIMEOUT, "truncated"),
        (Status.CANCELLED, "aborted"),
        (Status.FAILED, "failed"),
        (Status.COMPLETED, "failed"),
    ],
)
def test_how_a_session_that_gave_nothing_is_named(status: Status, named: str) -> None:
    """As one that gave something, but never `completed`: there is no reply."""
    whole = dataclasses.replace(
        group(), scored=(forked(), dataclasses.replace(failed(), status=status), cut(), plain())
    )
    (filler,) = samples_of(whole, sequences_of(whole, RULE), group_index=0, first_index=0, filler_id=3)[1]
    assert filler["status"] == named


def test_a_reward_that_is_no_number_never_reaches_the_trainer() -> None:
    """Its session gives no sequence and counts as ungraded: slime would make the whole group's rewards NaN."""
    strange = dataclasses.replace(
        group(), scored=(forked(), dataclasses.replace(failed(), reward=math.nan), cut(), plain())
    )
    rows = samples_of(strange, sequences_of(strange, RULE), group_index=0, first_index=0)
    assert [s["reward"] for s in chain(*rows)] == [1.0, 1.0, 0.5, 0.0, 0.5]


def test_rewards_raw_or_as_our_advantage() -> None:
    """Raw for slime's own normalisation; the advantage for groups with forks, with the reward kept for its metrics."""
    raw = list(chain(*samples_of(group(), sequences_of(group(), RULE), group_index=0, first_index=0)))
    assert [s["reward"] for s in raw] == [1.0, 1.0, 0.5, 0.0, 0.5]  # the ungraded session leaves the mean where it is
    assert all("raw_reward" not in s["metadata"] for s in raw)
    ours = list(
        chain(*samples_of(group(), sequences_of(group(), RULE), group_index=0, first_index=0, reward="advantage"))
    )
    assert [s["reward"] for s in ours] == [0.5, 0.5, 0.0, -0.5, 0.0]
    assert [s["metadata"]["raw_reward"] for s in ours] == [1.0, 1.0, 0.5, 0.0, 0.5]
    sequences = sequences_of(group(), RULE)
    (filler,) = samples_of(group(), sequences, group_index=0, first_index=0, ungraded=-1.0)[1]
    assert filler["reward"] == -1.0


@pytest.mark.parametrize(
    ("status", "finish", "expected"),
    [
        (Status.COMPLETED, "stop", "completed"),
        (Status.COMPLETED, "length", "truncated"),
        (Status.TIMEOUT, "stop", "truncated"),
        (Status.CANCELLED, "stop", "aborted"),
        (Status.FAILED, "stop", "failed"),
    ],
)
def test_statuses(status: Status, finish: str, expected: str) -> None:
    """Each end of a session in slime's words."""
    whole = dataclasses.replace(group(), scored=(forked(), failed(), plain()))
    sequence = dataclasses.replace(sequences_of(whole)[0], status=status, finish_reason=finish)
    assert status_of(sequence) == expected
