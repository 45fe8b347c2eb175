"""From a request and its parent to the prompt's ids and the delta that the record holds. Pure; meant for a worker thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from capture_proxy.lineage.identity import positions
from capture_proxy.lineage.nodes import Found, Node
from capture_proxy.rendering.base import Renderer
from capture_proxy.rendering.parser import THINK_END
from capture_proxy.rendering.template import TemplateRenderer
from capture_proxy.reply import ChatRequest
from capture_proxy.token_ids import TokenIds
from schemas import arrays
from schemas import lineage as words
from schemas.records import LineageStatus
from schemas.resolve import ID_BYTES, ResolvedCall, reply_message

SAMPLED: Final = "sampled"
"""A task's `history`: in the prompt, the tokens that were sampled stand for an earlier answer."""
TEMPLATE: Final = "template"
"""The other one: what the chat template makes of the answer's text, as the client sends it back."""

_FIRST_CHECKPOINT: Final = 64

_OPENING_IDS: Final = 8
"""How many ids at the end of a prompt may open (or skip) the thinking of its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where a call stands, as its record says it.

    The prompt is the first `prefix_len` ids of the parent's prompt and answer, and `suffix_ids` (packed); the conversation is the first
    `messages_prefix` messages of the parent's, and `messages`. Without a parent both are whole.
    """

    found: Found
    status: LineageStatus
    reason: str
    parent: Node | None = None
    prefix_len: int = 0
    prefix_digest: str = ""
    suffix_ids: bytes = b""
    messages_prefix: int = 0
    messages: list[Any] = field(default_factory=list)
    history: str = SAMPLED

    @property
    def parent_id(self) -> str:
        """The parent's completion id, or ''."""
        return "" if self.parent is None else self.parent.completion_id

    def whole_messages(self) -> list[Any]:
        """The conversation without its delta."""
        before = self.parent.call.conversation()[: self.messages_prefix] if self.parent is not None else []
        return [*before, *self.messages]


def place(found: Found, request: ChatRequest, renderer: Renderer, *, history: str) -> tuple[TokenIds, Placed]:
    """The prompt's ids and the call's place. Raises ProxyError(bad_request) for a conversation that can't be rendered."""
    parent = found.parent
    if parent is not None and history != TEMPLATE:
        extended = _extend(parent, found, request, renderer)
        if extended is not None:
            return extended, _behind(found, parent, extended, request, history)
    ids = TokenIds(arrays.pack_ids(renderer.render(request.messages, request.tools, request.template_kwargs)))
    status, reason = found.status, found.reason
    if parent is not None:
        apart = _departure(parent.call, ids)
        if apart is None:
            return ids, _behind(found, parent, ids, request, history)
        status, reason = LineageStatus.ROOT, _why_apart(parent.call, apart, renderer)
    return ids, Placed(
        found=found, status=status, reason=reason, suffix_ids=ids.packed, messages=request.messages, history=history
    )


def is_checkpoint(call_seq: int) -> bool:
    """Whether a call's record is whole whatever its parent: calls 64, 128, 256 …, so that no chain of deltas grows without bound."""
    return call_seq >= _FIRST_CHECKPOINT and call_seq & (call_seq - 1) == 0


def _extend(parent: Node, found: Found, request: ChatRequest, renderer: Renderer) -> TokenIds | None:
    output = arrays.unpack_ids(parent.call.record.output_ids).tolist()
    # A template looks at the messages alone; other formats may look at the prompt that they go on from.
    prompt = [] if isinstance(renderer, TemplateRenderer) else arrays.unpack_ids(parent.call.prompt()).tolist()
    extended = renderer.extend(
        prompt,
        output,
        request.messages,
        new_from=found.new_from,
        tools=request.tools,
        template_kwargs=request.template_kwargs,
    )
    if extended is None:
        return None
    return TokenIds(parent.call.reach() + arrays.pack_ids(extended[len(prompt) + len(output) :]))


def _behind(found: Found, parent: Node, ids: TokenIds, request: ChatRequest, history: str) -> Placed:
    prefix_len, messages = parent.call.reach_len, request.messages
    return Placed(
        found=found,
        status=LineageStatus.RESOLVED,
        reason=found.reason,
        parent=parent,
        prefix_len=prefix_len,
        prefix_digest=parent.call.reach_digest(),
        suffix_ids=ids.packed[prefix_len * ID_BYTES :],
        messages_prefix=parent.length + 1,
        messages=_renamed(parent, messages[found.new_from - 1], messages[found.new_from :]),
        history=history,
    )


def _renamed(parent: Node, answer: Mapping[str, Any], new: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The new messages; results of the parent's calls name them by their own ids, also where the client has lost those."""
    ours = [call["id"] for call in reply_message(parent.call.record).get("tool_calls") or ()]
    theirs = {call_id: ours[at] for call_id, at in positions(answer).items() if at < len(ours) and ours[at] != call_id}
    renamed = list(new)
    for at, message in enumerate(new):
        if message["role"] == "assistant" or not theirs:
            break
        if message["role"] == "tool" and message.get("tool_call_id") in theirs:
            renamed[at] = {**message, "tool_call_id": theirs[message["tool_call_id"]]}
    return renamed


def _departure(parent: ResolvedCall, ids: TokenIds) -> int | None:
    """The first place at which a prompt isn't the parent's prompt and answer; None when it goes on from all of it."""
    reach = parent.reach()
    if len(ids.packed) > len(reach) and ids.packed.startswith(reach):
        return None
    ours, theirs = ids.array, arrays.unpack_ids(reach)
    shared = min(len(ours), len(theirs))
    differs = (ours[:shared] != theirs[:shared]).nonzero()[0]
    return int(differs[0]) if differs.size else shared


def _why_apart(call: ResolvedCall, at: int, renderer: Renderer) -> str:
    """The kind of a departure: within an earlier answer's thinking (which may begin in its prompt), or anywhere else."""
    while call.parent is not None and call.parent.reach_len > at:
        call = call.parent
    opening = arrays.unpack_ids(call.prompt())[-_OPENING_IDS:].tolist()
    turn = [*opening, *arrays.unpack_ids(call.record.output_ids).tolist()]
    kept = at - (call.prompt_len - len(opening))
    is_thinking = kept >= 0 and THINK_END in renderer.decode(turn) and THINK_END not in renderer.decode(turn[:kept])
    return words.THINKING_REMOVED if is_thinking else words.RETOKENIZED
