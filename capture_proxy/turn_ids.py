"""The call's own id inside what a client echoes: opaque fields and tool-call ids, read back without guessing.

Clients return a thinking `signature`, `encrypted_content` or `thoughtSignature` verbatim, but only where it isn't empty. One form
serves all: standard base64 (some SDKs decode it to bytes) of a versioned prefix and the completion id's 16 bytes. It is a handle to
the sampled tokens, never their text.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from typing import Any, Final

TURN_KEY: Final = "turn_id"
"""The key under which a dialect marks an assistant message in history with the completion id that the client echoed."""

_PREFIX: Final = b"polynya1"
_TOOL_CALL: Final = re.compile(r"call_([0-9a-f]{32})_\d+")


def turn_token(completion_id: str) -> str:
    """The opaque mark of a call: base64, 32 characters, never empty."""
    return base64.b64encode(_PREFIX + uuid.UUID(completion_id).bytes).decode("ascii")


def completion_of(token: Any) -> str | None:
    """The completion id inside an echoed mark, or None for whatever `turn_token` didn't make."""
    if not isinstance(token, str):
        return None
    try:
        raw = base64.b64decode(token, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(raw) != len(_PREFIX) + 16 or not raw.startswith(_PREFIX):
        return None
    return str(uuid.UUID(bytes=raw[len(_PREFIX) :]))


def completion_of_tool_call(call_id: Any) -> str | None:
    """The completion that a tool call's id belongs to (`reply.tool_call_id`), or None for a foreign id."""
    found = _TOOL_CALL.fullmatch(call_id) if isinstance(call_id, str) else None
    return str(uuid.UUID(hex=found[1])) if found else None


def take_turn_ids(messages: list[dict[str, Any]]) -> tuple[str, ...]:
    """Removes the marks from normalised messages: one completion id per message, "" where there is none."""
    return tuple(str(message.pop(TURN_KEY, "") or "") for message in messages)
