"""From delta records to whole prompts and conversations: pure, in any order, at the cost of what is new.

A record's prompt is the first `prefix_len` tokens of (its parent's prompt + the parent's sampled ids), checked by `prefix_digest`
(SHA-256 of the packed ids), followed by `suffix_ids`. Its messages are the first `messages_prefix` messages of (the parent's
messages + the parent's reply), followed by its own. What doesn't check is named, never guessed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from schemas.arrays import ID_DTYPE
from schemas.records.completion import CompletionRecord

if TYPE_CHECKING:
    from hashlib import _Hash

ID_BYTES: Final = ID_DTYPE.itemsize

PARENT_MISSING: Final = "parent_missing"
PARENT_UNRESOLVED: Final = "parent_unresolved"
PARENT_NOT_EARLIER: Final = "parent_not_earlier"
PREFIX_MISMATCH: Final = "prefix_mismatch"
TORN: Final = "torn_array"
MISCOUNTED: Final = "prompt_len_mismatch"


class ResolvedCall:
    """A record and what its deltas stand for.

    `problem` says why the prompt can't be told ('' when it can). `prompt_len` and `reach_len` (prompt + sampled ids) count tokens.
    Whole prompts are put together when asked for; until then a call costs only its own suffix.
    """

    __slots__ = ("_hash", "parent", "problem", "prompt_len", "reach_len", "record")

    def __init__(self, record: CompletionRecord, parent: ResolvedCall | None) -> None:
        self.record = record
        self.parent = parent
        self.prompt_len = 0
        self.reach_len = 0
        self._hash: _Hash | None = None
        self.problem = self._check()

    def _check(self) -> str:
        record = self.record
        if len(record.suffix_ids) % ID_BYTES or len(record.output_ids) % ID_BYTES:
            return TORN
        if record.prefix_len > 0:
            if self.parent is None:
                return PARENT_MISSING
            if (problem := self._continue(self.parent)) is not None:
                return problem
        else:
            self._hash = hashlib.sha256()
        assert self._hash is not None
        self._hash.update(record.suffix_ids)
        self._hash.update(record.output_ids)
        self.prompt_len = record.prefix_len + len(record.suffix_ids) // ID_BYTES
        self.reach_len = self.prompt_len + len(record.output_ids) // ID_BYTES
        # 0 means that the producer didn't count, as the schema's default says.
        return "" if record.prompt_len in (0, self.prompt_len) else MISCOUNTED

    def _continue(self, parent: ResolvedCall) -> str | None:
        record = self.record
        if parent.record.lease_id != record.lease_id or parent.place >= self.place:
            return PARENT_NOT_EARLIER
        if parent.problem or parent._hash is None:
            return PARENT_UNRESOLVED
        if record.prefix_len == parent.reach_len:
            self._hash = parent._hash.copy()
        elif record.prefix_len < parent.reach_len:
            self._hash = hashlib.sha256(parent.reach()[: record.prefix_len * ID_BYTES])
        if self._hash is None or self._hash.hexdigest() != record.prefix_digest:
            return PREFIX_MISMATCH
        return None

    @property
    def place(self) -> tuple[int, int]:
        """(writer, call_seq): the canonical order of a lease's calls."""
        return self.record.writer, self.record.call_seq

    def prompt(self) -> bytes:
        """The whole prompt as packed int32 ids. Raises ValueError for a call with a `problem`."""
        if self.problem:
            raise ValueError(f"the prompt of call {self.record.completion_id} can't be told: {self.problem}")
        parts: list[bytes] = []
        call, limit = self, self.prompt_len
        while True:  # from the end to the front: each call adds its suffix, its parent what stands before that
            record = call.record
            start = record.prefix_len
            own = record.suffix_ids + record.output_ids
            parts.append(own[: (limit - start) * ID_BYTES])
            if start == 0:
                return b"".join(reversed(parts))
            assert call.parent is not None
            call, limit = call.parent, start
            while call.record.prefix_len >= limit:
                assert call.parent is not None
                call = call.parent

    def reach(self) -> bytes:
        """The prompt and the sampled ids, packed. Raises ValueError for a call with a `problem`."""
        return self.prompt() + self.record.output_ids

    def reach_digest(self) -> str:
        """SHA-256 (hex) of `reach()`: what a child that extends all of it names as its `prefix_digest`."""
        if self._hash is None or self.problem:
            raise ValueError(f"the prompt of call {self.record.completion_id} can't be told: {self.problem}")
        return self._hash.hexdigest()

    def messages(self) -> list[Any]:
        """The request's whole message list; where the parent is missing, only the record's own."""
        parts: list[list[Any]] = []
        call: ResolvedCall | None = self
        limit: int | None = None
        while call is not None:
            record = call.record
            own = list(record.messages) if isinstance(record.messages, list) else []
            if limit is not None:
                own.append(reply_message(record))
            start = record.messages_prefix if call.parent is not None else 0
            if limit is None or limit > start:
                parts.append(own if limit is None else own[: limit - start])
                limit = start
            if limit == 0:
                break
            call = call.parent
        return [message for part in reversed(parts) for message in part]

    def conversation(self) -> list[Any]:
        """The request's messages and the reply."""
        return [*self.messages(), reply_message(self.record)]


class Resolver:
    """Takes the records of any number of leases, in any order and repeated, and resolves each as soon as its parent is there."""

    def __init__(self) -> None:
        self.calls: dict[str, ResolvedCall] = {}
        self._waiting: dict[str, list[CompletionRecord]] = {}
        self._tools: dict[tuple[str, str], Any] = {}

    def add(self, record: CompletionRecord) -> list[ResolvedCall]:
        """Takes a record; the calls that are resolved now: it, and those that waited for it. A repeat gives nothing."""
        if record.completion_id in self.calls:
            return []
        if record.tools and record.tools_digest:
            self._tools.setdefault((record.lease_id, record.tools_digest), record.tools)
        needs_parent = record.parent_id and (record.prefix_len > 0 or record.messages_prefix > 0)
        parent = self.calls.get(record.parent_id) if needs_parent else None
        if needs_parent and parent is None:
            waiting = self._waiting.setdefault(record.parent_id, [])
            if all(record.completion_id != other.completion_id for other in waiting):
                waiting.append(record)
            return []
        resolved = [self._resolve(record, parent)]
        for call in resolved:  # grows while it is walked
            resolved += [self._resolve(w, call) for w in self._waiting.pop(call.record.completion_id, ())]
        return resolved

    def _resolve(self, record: CompletionRecord, parent: ResolvedCall | None) -> ResolvedCall:
        call = self.calls[record.completion_id] = ResolvedCall(record, parent)
        return call

    def waiting(self) -> Iterator[CompletionRecord]:
        """The records whose parents never came."""
        for records in self._waiting.values():
            yield from records

    def give_up(self) -> list[ResolvedCall]:
        """Takes what still waits as it is: with a `problem` where its prompt needs the parent."""
        left = sorted(self.waiting(), key=lambda r: (r.writer, r.call_seq))
        self._waiting.clear()
        return [self._resolve(record, self.calls.get(record.parent_id)) for record in left]

    def tools(self, record: CompletionRecord) -> Any:
        """A record's tools; one that only repeats the digest of another call of its lease gets that one's."""
        return record.tools or self._tools.get((record.lease_id, record.tools_digest), [])


def resolve(records: Iterable[CompletionRecord]) -> Resolver:
    """Everything at once: afterwards every record stands in `calls`."""
    resolver = Resolver()
    for record in records:
        resolver.add(record)
    resolver.give_up()
    return resolver


def reply_message(record: CompletionRecord) -> dict[str, Any]:
    """A call's reply as the assistant message of an OpenAI conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": record.text}
    if record.reasoning:
        message["reasoning_content"] = record.reasoning
    if record.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.get("id", ""),
                "type": "function",
                "function": {"name": call.get("name", ""), "arguments": call.get("arguments", "")},
            }
            for call in record.tool_calls
        ]
    return message
