"""Whether a call's reply may be trained, and if not, for which one reason."""

from __future__ import annotations

from typing import Final

from schemas.arrays import unpack_logprobs
from schemas.records import CompletionState, VersionSpan
from stream_processors.builders.base import Call
from stream_processors.builders.tree import CallTree
from stream_processors.builders.trie import ID_BYTES, Place, has_negative

LOGPROB_FLOOR: Final = -9000.0
"""Engines write -9999 for "no value"; a real log-probability of a sampled token never comes near."""

LOGPROB_CEILING: Final = 1e-3
"""A log-softmax in low precision may end a rounding error above 0; anything more isn't a log-probability."""

_SURELY_LOGPROBS: Final = bytes([*range(0x3A), *range(0x80, 0xC6)])
"""Last bytes of float32 in [0, 0.00048) and in (-8192, 0]: 0x3A begins at 0.00048, 0xC6 at -8192."""


def content_problem(call: Call, prompt: Place | None, policy_id: str) -> str:
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
    if is_foreign(call, policy_id):
        return "other_policy"
    if record.untrainable_reason:
        return record.untrainable_reason
    if prompt is None:
        return "prompt_unresolved"
    return _token_problem(call, prompt) or ("" if record.trainable else "untrainable_unexplained")


def _token_problem(call: Call, prompt: Place) -> str:
    record = call.record
    if not record.output_ids:
        return "ids_missing" if record.text or record.reasoning or record.tool_calls else "empty_generation"
    if not prompt.depth:
        return "ids_missing"
    # Both arrays have 4-byte elements, so equal lengths in bytes are equal lengths in tokens.
    if len(record.logprobs) != len(record.output_ids):
        return "logprob_length"
    if prompt.is_negative or has_negative(record.output_ids):
        return "oov"
    if not _are_logprobs(record.logprobs):
        return "logprob_invalid"
    return "" if _are_whole(record.version_spans, len(record.output_ids) // ID_BYTES) else "mixed_version"


def _are_logprobs(packed: bytes) -> bool:
    """Whether all of these float32 are above the floor and not above the ceiling."""
    if not packed[3::4].translate(None, _SURELY_LOGPROBS):  # the last byte holds the sign and most of the exponent
        return True
    values = unpack_logprobs(packed)
    return bool(values.min() > LOGPROB_FLOOR and values.max() <= LOGPROB_CEILING)  # NaN fails both


def _are_whole(spans: list[VersionSpan], length: int) -> bool:
    """Whether the spans say of each token which version sampled it; none at all is an engine without versions."""
    at = 0
    for span in spans:
        if span.start != at or span.end < span.start:
            return False
        at = span.end
    return not spans or at == length


def is_foreign(call: Call, policy_id: str) -> bool:
    """Whether another policy answered, whose calls stay out of the tree."""
    return bool(policy_id and call.record.policy_id and call.record.policy_id != policy_id)


def can_be_parent(call: Call, prompt: Place | None) -> bool:
    """Whether a later call may hang on this one: its tokens are known."""
    return prompt is not None and prompt.depth > 0 and bool(call.record.output_ids) and not call.is_conflicted


def judge(calls: list[Call], prompts: list[Place | None], tree: CallTree, policy_id: str) -> list[str]:
    """The reason why each call is untrainable, '' for those to train.

    A reply counts as received when it was delivered or when a later call continues it. Of repeated requests (same
    body, same prompt) that nothing continues, one that was received alone is the terminal one and supersedes the
    others, and so is the last one received when all received before it are empty: that is why it was asked for. With
    none or several received otherwise nobody can say which one the harness used: `terminal_ambiguous`.
    """
    problems = [content_problem(c, p, policy_id) for c, p in zip(calls, prompts, strict=True)]
    digests = [c.record.tokenizer_digest for c, p in zip(calls, problems, strict=True) if not p]
    tokenizer = next((d for d in digests if d), "")
    repeats: dict[tuple[int, Place | None, str], list[int]] = {}
    for call in calls:
        i = call.position
        if not problems[i] and tokenizer and call.record.tokenizer_digest not in ("", tokenizer):
            problems[i] = "other_tokenizer"
        if not problems[i]:
            repeats.setdefault((tree.parent[i], tree.prompts[i], call.record.request_digest), []).append(i)
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
        if not received or is_one_continued:
            return ""
        *earlier, last = sorted([i, *received])
        if is_empty(calls[last]) or not all(is_empty(calls[j]) for j in earlier):
            return "terminal_ambiguous"
        return "" if i == last else "superseded"
    if received:
        return "superseded"
    if others:
        return "terminal_ambiguous"
    return "undelivered" if calls[i].is_delivered is False else "delivery_unknown"


def is_empty(call: Call) -> bool:
    """Whether a reply has nothing for its reader: neither words nor tool calls. Thoughts alone are nothing."""
    return not call.record.text.strip() and not call.record.tool_calls
