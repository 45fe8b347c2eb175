"""When two messages are the same: what clients change on the way back and forth doesn't count, what the model would read does.

Not part of a message's identity: thinking (clients drop it; see `is_same_reasoning`), the ids of tool calls (two clients drop them), the
spelling of arguments, white space around an answer, the encoding of an image.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from capture_proxy.turn_ids import completion_of_tool_call

DIGEST_BYTES: Final = 16

_EXACT_IN_JAVASCRIPT: Final = 2**53
"""Whole numbers above it come back from a JavaScript client as the nearest double."""

_THINK_END: Final = "</think>"

_STANDARD_ALPHABET: Final = bytes.maketrans(b"-_", b"+/")


class Trail:
    """A conversation's running digests: `chain[i]` stands for messages 0 … i.

    `seed` stands for what was said before them, `calls` are the last answer's tool calls there.
    """

    __slots__ = ("_calls", "_seed", "chain", "messages")

    def __init__(self, seed: bytes = b"", calls: Mapping[str, int] | None = None) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self.chain: list[bytes] = []
        self._seed = seed
        self._calls = calls or {}

    @property
    def digest(self) -> bytes:
        """Of all messages so far."""
        return self.chain[-1] if self.chain else self._seed

    def extend(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Adds messages; costs what is new."""
        at = self.digest
        for message in messages:
            at = after(at, message, self._calls)
            self.chain.append(at)
            self.messages.append(message)
            if message["role"] == "assistant":
                self._calls = positions(message)

    def fork(self) -> Trail:
        """A trail of its own with the same beginning (and the same message objects)."""
        other = Trail(self._seed, self._calls)
        other.messages, other.chain = list(self.messages), list(self.chain)
        return other

    def is_start_of(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether these messages begin with all of this trail's, letter by letter: many times quicker than digests."""
        return len(messages) >= len(self.messages) and list(messages[: len(self.messages)]) == self.messages


def after(digest: bytes, message: Mapping[str, Any], calls: Mapping[str, int] | None = None) -> bytes:
    """The digest of a conversation and one message more; `calls` are the positions of the tool calls that it may be a result of."""
    return hashlib.blake2b(digest + _content_of(message, calls or {}), digest_size=DIGEST_BYTES).digest()


def positions(answer: Mapping[str, Any]) -> dict[str, int]:
    """An answer's tool calls: id → position."""
    return {str(call.get("id") or ""): position for position, call in enumerate(answer.get("tool_calls") or ())}


def names(message: Mapping[str, Any], mark: str = "") -> set[str]:
    """The completions that an answer in history names: by the mark in an opaque field, or by its tool calls' ids."""
    found = {completion_of_tool_call(call.get("id")) for call in message.get("tool_calls") or ()}
    return {name for name in (*found, mark) if name}


def is_same_reasoning(sampled: str, message: Mapping[str, Any]) -> bool:
    """Whether what a client sends back of the thinking is the sampled one: nothing of it, or all of it but white space."""
    echoed = str(message.get("reasoning_content") or "").strip() or _split_thinking(message)[0]
    return not echoed or echoed == sampled.strip()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys, exact for what only the standard library can write."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate, or a number beyond 64 bits
        return json.dumps(value, sort_keys=True).encode()


def canonical_arguments(arguments: str) -> Any:
    """A tool call's arguments without their spelling: key order, spacing, escapes, 30000.0 or 30000. No JSON: the text itself."""
    try:
        return _canonical(json.loads(arguments or "{}"))
    except (ValueError, RecursionError):
        return arguments


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if abs(value) > _EXACT_IN_JAVASCRIPT:
        return _as_double(value)
    return int(value) if value == int(value) else value


def _as_double(value: float) -> Any:
    try:
        return repr(float(value))
    except OverflowError:  # more digits than a double reaches
        return str(value)


def _content_of(message: Mapping[str, Any], calls: Mapping[str, int]) -> bytes:
    role, content = message["role"], message.get("content") or ""
    if role == "assistant":
        text = _split_thinking(message)[1] if isinstance(content, str) else _parts(content)
        made = [
            [call["function"].get("name"), canonical_arguments(call["function"].get("arguments") or "")]
            for call in message.get("tool_calls") or ()
        ]
        return canonical_json(["assistant", text, made])
    if role == "tool":
        call_id = str(message.get("tool_call_id") or "")
        return canonical_json(["tool", calls.get(call_id, call_id), _parts(content)])
    return canonical_json([role, _parts(content), message.get("name") or ""])


def _split_thinking(message: Mapping[str, Any]) -> tuple[str, str]:
    """(thinking, text) of an answer, both trimmed: some clients send the thinking back as part of the text."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        return "", ""
    if _THINK_END not in content or message.get("reasoning_content"):
        return "", content.strip()
    thinking, _, text = content.partition(_THINK_END)
    return thinking.strip().removeprefix("<think>").strip(), text.strip()


def _parts(content: Any) -> Any:
    return content if isinstance(content, str) else [_part(part) for part in content or ()]


def _part(part: Mapping[str, Any]) -> Any:
    if part.get("type") != "image_url":
        return ["text", part.get("text") or ""]
    url = str((part.get("image_url") or {}).get("url") or "")
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:"):
        return ["image", url]
    if head.endswith(";base64"):
        # One spelling of the same bytes; decoding the largest ones would take twice the time.
        spelled = data.encode("utf-8", "surrogatepass").translate(_STANDARD_ALPHABET, b" \t\r\n=")
    else:
        spelled = data.encode("utf-8", "surrogatepass")
    return ["image", hashlib.sha256(spelled).hexdigest()]
