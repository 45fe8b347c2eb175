"""Whether a call's reply may be trained, and if not, for which one reason."""

from __future__ import annotations

from typing import Final

import numpy as np

from schemas.arrays import unpack_ids, unpack_logprobs
from schemas.records import CompletionState
from stream_processors.builders.base import ID_BYTES, Call
from stream_processors.builders.tree import CallTree

LOGPROB_FLOOR: Final = -9000.0
"""Engines write -9999 for "no value"; a real log-probability of a sampled token never comes near."""

LOGPROB_CEILING: Final = 1e-3
"""A log-softmax in low precision may end a rounding error above 0; anything more isn't a log-probability."""


def content_problem(call: Call, prompt: bytes | None, policy_id: str) -> str:
    """Why the record itself can't be trained ('' when it can), whatever became of the reply."""
    record = call.record
    if call.is_conflicted:
        return "id_conflict"
    if record.state is CompletionState.FAILED:
        return "failed"
    if record.state is CompletionState.ABORTED or record.finish_reason == "abort":
        return "aborted"
    if record.state is not CompletionState.FINISHED:
        return "state_unknown"
    if policy_id and record.policy_id and record.policy_id != policy_id:
        return "other_policy"
    if record.untrainable_reason:
        return record.untrainable_reason
    if prompt is None:
        return "prompt_unresolved"
    return _token_problem(call, prompt) or ("" if record.trainable else "untrainable_unexplained")


def _token_problem(call: Call, prompt: bytes) -> str:
    record = call.record
    if not record.output_ids:
        return "ids_missing" if record.text or record.reasoning or record.tool_calls else "empty_generation"
    if not prompt:
        return "ids_missing"
    # Both arrays have 4-byte elements, so equal lengths in bytes are equal lengths in tokens.
    if len(record.logprobs) != len(record.output_ids):
        return "logprob_length"
    if int(unpack_ids(record.output_ids).min()) < 0 or int(unpack_ids(prompt).min()) < 0:
        return "oov"
    values = unpack_logprobs(record.logprobs)
    if not bool(np.all((values > LOGPROB_FLOOR) & (values <= LOGPROB_CEILING))):  # NaN fails both
        return "logprob_invalid"
    return ""


def can_be_parent(call: Call, prompt: bytes | None, policy_id: str) -> bool:
    """Whether a later call may hang on this one: its tokens are known and its own policy's."""
    is_other = bool(policy_id and call.record.policy_id and call.record.policy_id != policy_id)
    return bool(prompt) and len(call.record.output_ids) >= ID_BYTES and not (call.is_conflicted or is_other)


def judge(calls: list[Call], prompts: list[bytes | None], tree: CallTree, policy_id: str) -> list[str]:
    """The reason why each call is untrainable, '' for those to train.

    A reply counts as received when it was delivered or when a later call continues it. Of repeated requests (same
    body, same prompt) that nothing continues, one that was received alone is the terminal one and supersedes the
    others; with none or several received nobody can say which one the harness used: `terminal_ambiguous`.
    """
    problems = [content_problem(c, p, policy_id) for c, p in zip(calls, prompts, strict=True)]
    digests = [c.record.tokenizer_digest for c, p in zip(calls, problems, strict=True) if not p]
    tokenizer = next((d for d in digests if d), "")
    repeats: dict[tuple[int, bytes, str], list[int]] = {}
    for call in calls:
        i = call.position
        if not problems[i] and tokenizer and call.record.tokenizer_digest not in ("", tokenizer):
            problems[i] = "other_tokenizer"
        if not problems[i]:
            repeats.setdefault((tree.parent[i], tree.digests[i], call.record.request_digest), []).append(i)
    for twins in repeats.values():
        for i in twins:
            problems[i] = _delivery_problem(i, twins, calls, tree)
    return problems


def _delivery_problem(i: int, twins: list[int], calls: list[Call], tree: CallTree) -> str:
    if tree.is_continued[i]:
        return ""
    others = [j for j in twins if j != i]
    is_one_continued = any(tree.is_continued[j] for j in others)
    received = [j for j in others if tree.is_continued[j] or calls[j].is_delivered]
    if calls[i].is_delivered:
        return "terminal_ambiguous" if received and not is_one_continued else ""
    if received:
        return "superseded"
    if others:
        return "terminal_ambiguous"
    return "undelivered" if calls[i].is_delivered is False else "delivery_unknown"
