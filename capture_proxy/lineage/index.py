"""The calls of one lease by what was said: from a new request to the earlier call that it goes on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from capture_proxy.lineage.identity import Trail, after, canonical_json, is_same_reasoning, names, positions
from capture_proxy.lineage.nodes import (
    INSTRUCTIONS,
    Followed,
    Found,
    Head,
    Node,
    choose,
    head_of,
    length_of,
    size_of,
    slim,
)
from schemas import ids
from schemas import lineage as words
from schemas.records import CompletionRecord, CompletionState, LineageStatus
from schemas.resolve import ResolvedCall, Resolver, reply_message

_TRAILS: Final = 4
"""How many of a lease's latest requests are compared letter by letter before digests are computed: main line and some sub-agents."""


@dataclass(eq=False, slots=True)
class Lineage:
    """One lease's calls. A record is added once it is made (or read back), in any order; only finished ones become parents.

    `has_gap`: calls of a predecessor may be missing, so that a request that names an unknown answer has no parent for sure.
    """

    policy_id: str = ""
    has_gap: bool = False
    nodes: dict[str, Node] = field(default_factory=dict)
    _resolver: Resolver = field(default_factory=Resolver)
    _ends: dict[bytes, list[Node]] = field(default_factory=dict)
    _requests: dict[bytes, Node] = field(default_factory=dict)
    _openings: set[bytes] = field(default_factory=set)
    _trails: dict[Trail, int] = field(default_factory=dict)
    _delivered: dict[str, bool] = field(default_factory=dict)
    _tools: set[str] = field(default_factory=set)
    _latest_tools: tuple[list[Any], str] = ([], "")
    _calls_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory: its calls, and the latest requests that became none."""
        return self._calls_bytes + sum(self._trails.values())

    # --- what happened

    def add(self, record: CompletionRecord, *, trail: Trail | None = None, is_claimed: bool = False) -> None:
        """Takes a call's record. `trail` are its request's digests where they are known; `is_claimed`: its parent counts it already."""
        if record.policy_id != self.policy_id:
            return  # another policy's answer: nobody's parent, and nothing refers to it
        if record.tools_digest and record.tools:
            self._tools.add(record.tools_digest)
        if record.state is not CompletionState.FINISHED:
            return  # a failed request's messages are nobody's parent
        for call in self._resolver.add(slim(record)):
            is_this = call.record.completion_id == record.completion_id
            self._stand(call, trail if is_this else None, is_claimed=is_this and is_claimed)

    def deliver(self, completion_id: str, *, is_delivered: bool) -> None:
        """Takes a delivery fact; facts for one call merge by OR, and may come before the record."""
        is_delivered = is_delivered or self._delivered.get(completion_id, False)
        self._delivered[completion_id] = is_delivered
        if (node := self.nodes.get(completion_id)) is not None:
            node.is_delivered = is_delivered

    def digest_tools(self, tools: list[Any]) -> str:
        """The digest under which a list of tools is known, '' for none; an unchanged list isn't digested again."""
        if not tools:
            return ""
        if tools != self._latest_tools[0]:
            self._latest_tools = (tools, ids.digest(canonical_json(tools)))
        return self._latest_tools[1]

    def knows_tools(self, digest: str) -> bool:
        """Whether a record of this lease holds these tools, so that another needs only their digest."""
        return digest in self._tools

    @property
    def has_tools(self) -> bool:
        """Whether any call of this lease had tools."""
        return bool(self._tools) or bool(self._latest_tools[0])

    def _stand(self, call: ResolvedCall, trail: Trail | None, *, is_claimed: bool) -> None:
        record = call.record
        parent = self.nodes.get(record.parent_id)
        if parent is not None and not is_claimed:
            parent.claims += 1
        if trail is not None:
            asked, length = trail.digest, len(trail.messages)
            self._openings.update(trail.chain[:1])
        else:
            asked, length = self._replay(call, parent)
        end = after(asked, reply_message(record))
        node = Node(call, head_of(record.tools_digest, record.template_options or {}), length, end)
        node.has_instructions = bool((record.notes or {}).get(INSTRUCTIONS))
        node.is_delivered = self._delivered.get(record.completion_id)
        self.nodes[record.completion_id] = node
        self._ends.setdefault(end, []).append(node)
        self._requests[asked] = node
        self._calls_bytes += size_of(record)
        if trail is not None and trail in self._trails:
            self._trails[trail] = 0

    def _replay(self, call: ResolvedCall, parent: Node | None) -> tuple[bytes, int]:
        """(digest, number) of a request's messages, from its delta where that goes on from the parent's whole conversation."""
        record = call.record
        if parent is not None and record.messages_prefix == parent.length + 1:
            rest = Trail(parent.end, positions(reply_message(parent.call.record)))
            rest.extend(record.messages)
            return rest.digest, record.messages_prefix + len(record.messages)
        whole = Trail()
        whole.extend(call.messages())
        self._openings.update(whole.chain[:1])
        return whole.digest, len(whole.messages)

    # --- what is asked

    def follow(self, messages: Sequence[Mapping[str, Any]]) -> Followed:
        """The request's digests; a beginning that an earlier request had, letter by letter, isn't digested again.

        Changes nothing, so that a large request can be followed in a thread.
        """
        known = [trail for trail in tuple(self._trails) if trail.is_start_of(messages)]
        base = max(known, key=lambda trail: len(trail.messages), default=None)
        trail = Trail() if base is None else base.fork()
        trail.extend(messages[len(trail.messages) :])
        return Followed(base, trail)

    def find(
        self,
        messages: Sequence[Mapping[str, Any]],
        head: Head,
        marks: Sequence[str] = (),
        followed: Followed | None = None,
    ) -> Found:
        """The earlier call whose conversation is the longest proper prefix of these messages, under the same head.

        `marks` names completions per message (`ChatRequest.turn_ids`), `followed` is what `follow` made of them. Costs what is new in
        the messages. A parent is claimed: call `release` when the call comes to nothing.
        """
        trail = self._keep(self.follow(messages) if followed is None else followed)
        obstacle = ""
        for at in range(len(messages) - 2, -1, -1):
            if messages[at]["role"] != "assistant":
                continue
            twins = self._twins(trail.chain[at], messages[at], marks[at] if marks else "")
            if not twins:
                continue
            fitting = [node for node in twins if node.head == head and node.is_extendable]
            if not fitting:
                obstacle = obstacle or _obstacle(twins[-1].head, head)
                continue
            if self.has_gap and any(m["role"] == "assistant" for m in messages[at + 1 :]):
                return Found(status=LineageStatus.AMBIGUOUS, reason=words.LINEAGE_GAP, trail=trail, head=head)
            parent = choose(fitting)
            if parent is None:
                return Found(status=LineageStatus.AMBIGUOUS, reason=words.IDENTICAL_TWINS, trail=trail, head=head)
            parent.claims += 1
            reason = obstacle or self._tell(messages, trail, head, above=at + 1)
            return Found(
                status=LineageStatus.RESOLVED, reason=reason, parent=parent, new_from=at + 1, trail=trail, head=head
            )
        if self.has_gap and any(m["role"] == "assistant" for m in messages):
            return Found(status=LineageStatus.AMBIGUOUS, reason=words.LINEAGE_GAP, trail=trail, head=head)
        reason = obstacle or self._tell(messages, trail, head) or self._begin(trail)
        return Found(status=LineageStatus.ROOT, reason=reason, trail=trail, head=head)

    def release(self, parent_id: str) -> None:
        """A call that claimed this parent failed, was aborted or never began."""
        if (parent := self.nodes.get(parent_id)) is not None and parent.claims:
            parent.claims -= 1

    def _keep(self, followed: Followed) -> Trail:
        """Keeps the trail in its base's place; the texts that it holds alone count, until its call's own weight counts them."""
        trail, base = followed.trail, followed.base
        new = sum(length_of(message) for message in trail.messages[len(base.messages) if base is not None else 0 :])
        weight = new + (self._trails.pop(base, 0) if base is not None else 0)
        self._trails[trail] = weight
        while len(self._trails) > _TRAILS:
            del self._trails[next(iter(self._trails))]
        return trail

    def _twins(self, digest: bytes, answer: Mapping[str, Any], mark: str) -> list[Node]:
        """The calls with this very conversation, thinking included as far as it was sent back; those that the answer names, if it does."""
        nodes = [node for node in self._ends.get(digest, ()) if is_same_reasoning(node.call.record.reasoning, answer)]
        named = names(answer, mark) & self.nodes.keys() if nodes else set()
        return [node for node in nodes if node.completion_id in named] if named else nodes

    def _tell(self, messages: Sequence[Mapping[str, Any]], trail: Trail, head: Head, *, above: int = 0) -> str:
        """Why the longest earlier request that this one repeats isn't its parent; '' when it repeats none beyond `above` messages."""
        for length in range(len(messages) - 1, above, -1):
            earlier = self._requests.get(trail.chain[length - 1])
            if earlier is not None and messages[length]["role"] == "assistant":
                return _obstacle(earlier.head, head) if earlier.head != head else words.REWRITTEN
        if (again := self._requests.get(trail.digest)) is not None and again.head == head:
            return words.RESAMPLED
        return ""

    def _begin(self, trail: Trail) -> str:
        if not self.nodes:
            return words.SESSION_START
        return (
            words.CONTEXT_REPLACED if trail.chain[:1] and trail.chain[0] in self._openings else words.NEW_CONVERSATION
        )


def _obstacle(theirs: Head, ours: Head) -> str:
    if theirs.tools_digest != ours.tools_digest:
        return words.TOOLS_CHANGED
    return words.OPTIONS_CHANGED if theirs.options != ours.options else words.RETOKENIZED
