"""What a lease's lineage holds of one call, what that weighs, and which of several calls with one answer is gone on from. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from capture_proxy.engines.chat_tokens import IDS_INCOMPLETE
from capture_proxy.lineage.identity import Trail
from schemas.json_text import dump
from schemas.records import CompletionRecord, LineageStatus
from schemas.resolve import ResolvedCall

INSTRUCTIONS: Final = "has_instructions"
"""The key in a record's notes that says so; see `Node.has_instructions`."""

_OVERHEAD_BYTES: Final = 6_000
"""What a call takes in memory beside its tokens and texts: the record, the node, dictionary entries. Measured, rounded up."""


@dataclass(frozen=True, slots=True)
class Head:
    """What must be equal beside the messages, since it changes how they are rendered: the tools, the template's switches (as JSON)."""

    tools_digest: str = ""
    options: str = "{}"


def head_of(tools_digest: str, options: Mapping[str, Any]) -> Head:
    """The head of a request or a record."""
    return Head(tools_digest, dump(dict(sorted(options.items()))))


@dataclass(eq=False, slots=True)
class Node:
    """A finished call that may be a parent. `end` is the digest of its whole conversation, `length` counts its request's messages."""

    call: ResolvedCall
    head: Head
    length: int
    end: bytes
    has_instructions: bool = False
    """Its first message came as the request's instructions, which a request that continues it by name brings anew."""
    is_delivered: bool | None = None
    claims: int = 0
    """How many calls go on from it."""

    @property
    def completion_id(self) -> str:
        """The call's id."""
        return self.call.record.completion_id

    @property
    def is_extendable(self) -> bool:
        """Whether all its tokens are known: what an engine gave without ids can't be gone on from token by token.

        A text-in engine may tell the output's ids and not the prompt's, or swallow some.
        """
        call, record = self.call, self.call.record
        if call.problem or not call.prompt_len or record.untrainable_reason == IDS_INCOMPLETE:
            return False
        return bool(record.output_ids or not (record.text or record.tool_calls))


@dataclass(frozen=True, slots=True)
class Followed:
    """A request's digests, and the earlier request's that they go on from, if any."""

    base: Trail | None
    trail: Trail


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the lease knows of a request.

    `messages[:new_from]` of the request are the parent's messages and its answer; without a parent `new_from` is 0. `trail` holds the
    request's digests. `head` is what the record says of tools and switches.
    """

    status: LineageStatus
    reason: str = ""
    parent: Node | None = None
    new_from: int = 0
    trail: Trail
    head: Head

    @property
    def parent_id(self) -> str:
        """The parent's completion id, or ''."""
        return "" if self.parent is None else self.parent.completion_id


def choose(twins: list[Node]) -> Node | None:
    """Among calls with the same messages and the same answer: one that wasn't gone on from yet, so that each gets one; None: unknown.

    What surely didn't reach the client is no twin, unless it is alone. When each has a child already, only equal tokens make the
    choice free.
    """
    viable = [node for node in twins if node.is_delivered is not False] or twins
    viable.sort(key=lambda node: (node.claims > 0, node.call.place))
    if len(viable) == 1 or not viable[0].claims:
        return viable[0]
    if len({node.call.reach_digest() for node in viable}) == 1:
        return min(viable, key=lambda node: (node.claims, node.call.place))
    return None


def slim(record: CompletionRecord) -> CompletionRecord:
    """What a parent needs of its record."""
    return replace(
        record,
        logprobs=b"",
        tools=[],
        version_spans=[],
        notes={INSTRUCTIONS: True} if (record.notes or {}).get(INSTRUCTIONS) else {},
        engine_finish=None,
        sampling_requested={},
        sampling_effective={},
    )


def size_of(record: CompletionRecord) -> int:
    """About how many bytes a call takes in memory."""
    text = len(record.text) + len(record.reasoning) + sum(length_of(m) for m in record.messages or ())
    # Texts count twice: the client's own copy of an answer stays with the latest requests.
    return _OVERHEAD_BYTES + len(record.suffix_ids) + len(record.output_ids) + 2 * text


def length_of(message: Any) -> int:
    """About how many characters a message has."""
    if not isinstance(message, dict):
        return 0
    return _characters(message.get("content")) + _characters(message.get("tool_calls"))


def _characters(value: Any) -> int:
    """Of all texts in a JSON value; without a copy of them, since an image is a text of megabytes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + _characters(item) for key, item in value.items())
    return sum(map(_characters, value)) if isinstance(value, list) else 0
