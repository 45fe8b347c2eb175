"""Requests that name an earlier call and send only what is new: made whole from the lease's own calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from capture_proxy.dialects.body import Notes
from capture_proxy.dialects.pairing import pair_tools
from capture_proxy.lineage.index import Lineage
from capture_proxy.reply import ChatRequest, ProxyError
from schemas.resolve import reply_message

NOT_FOUND: Final = "previous_response_not_found"


def made_whole(request: ChatRequest, lineage: Lineage) -> ChatRequest:
    """The request with the conversation that it continues in front, tool results paired with the calls there.

    Instructions aren't inherited: the request's own take the place of the earlier ones. Raises ProxyError(bad_request) for a call
    that this lease doesn't know; another lease's is one of those.
    """
    if not request.continues:
        return request
    node = lineage.nodes.get(request.continues)
    if node is None:
        raise ProxyError(
            "bad_request",
            f"previous response {request.continues} isn't known in this session: send the whole input instead",
            param="previous_response_id",
            code=NOT_FOUND,
        )
    before = node.call.messages()[1 if node.has_instructions else 0 :]
    own = request.messages[:1] if request.has_instructions else []
    new = request.messages[len(own) :]
    notes = Notes()
    behind = pair_tools([reply_message(node.call.record), *(dict(message) for message in new)], notes)
    marks = [*("" for _ in (*own, *before)), node.completion_id, *("" for _ in behind[1:])]
    return replace(
        request,
        messages=[*own, *before, *behind],
        turn_ids=tuple(marks),
        continues="",
        notes=tuple(sorted({*request.notes, *notes.sorted()})),
    )
