"""The full prompt of every call, from the deltas that the records carry.

A record's prompt is the first `prefix_len` tokens of (its parent's prompt + the parent's sampled ids), verified by
`prefix_digest` (SHA-256 of the packed ids), followed by `suffix_ids`. What doesn't verify is never guessed.
"""

from __future__ import annotations

from typing import Any

from schemas import ids
from stream_processors.builders.base import ID_BYTES, Call


def resolve_prompts(calls: list[Call]) -> list[bytes | None]:
    """The packed int32 prompt of each call of a lease (canonical order), or None where it can't be told for sure.

    None when the parent isn't in the set or stands later, when the digest or the recorded length disagrees, or when
    an array is torn.
    """
    by_id = {call.record.completion_id: call.position for call in calls}
    prompts: list[bytes | None] = []
    for call in calls:
        prompts.append(_resolve(call, calls, by_id, prompts))
    return prompts


def _resolve(call: Call, calls: list[Call], by_id: dict[str, int], prompts: list[bytes | None]) -> bytes | None:
    record = call.record
    prompt: bytes = record.suffix_ids
    if record.prefix_len > 0:
        parent = by_id.get(record.parent_id, call.position)
        if parent >= call.position or (parent_prompt := prompts[parent]) is None:
            return None
        whole = parent_prompt + calls[parent].record.output_ids
        prefix = whole[: record.prefix_len * ID_BYTES]
        if len(prefix) != record.prefix_len * ID_BYTES or ids.digest(prefix) != record.prefix_digest:
            return None
        prompt = prefix + record.suffix_ids
    is_torn = len(prompt) % ID_BYTES or len(record.output_ids) % ID_BYTES
    # 0 means that the producer didn't count, as the schema's default says.
    is_miscounted = record.prompt_len not in (0, len(prompt) // ID_BYTES)
    return None if is_torn or is_miscounted else prompt


def resolve_messages(calls: list[Call]) -> list[list[Any]]:
    """The full message list of each call's request: `messages_prefix` messages of the parent's conversation and its own."""
    by_id = {call.record.completion_id: call.position for call in calls}
    resolved: list[list[Any]] = []
    for call in calls:
        own = list(call.record.messages) if isinstance(call.record.messages, list) else []
        parent = by_id.get(call.record.parent_id, call.position)
        if call.record.messages_prefix > 0 and parent < call.position:
            conversation = [*resolved[parent], reply_message(calls[parent])]
            own = conversation[: call.record.messages_prefix] + own
        resolved.append(own)
    return resolved


def reply_message(call: Call) -> dict[str, Any]:
    """A call's reply as the assistant message that an OpenAI-style conversation would hold."""
    record = call.record
    message: dict[str, Any] = {"role": "assistant", "content": record.text}
    if record.reasoning:
        message["reasoning_content"] = record.reasoning
    if record.tool_calls:
        message["tool_calls"] = record.tool_calls
    return message
