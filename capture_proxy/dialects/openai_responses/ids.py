"""The ids that clients see, each of which leads back to its completion."""

from __future__ import annotations

import re
import uuid
from typing import Any, Final

_RESPONSE: Final = re.compile(r"resp_([0-9a-f]{32})")
_ITEM: Final = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-f]{32})_\d+")


def response_id(completion_id: str) -> str:
    """The id of a whole response."""
    return f"resp_{completion_id.replace('-', '')}"


def item_id(prefix: str, completion_id: str, output_index: int) -> str:
    """The id of one output item: `rs` reasoning, `msg` message, `fc` function call, `ctc` custom tool call."""
    return f"{prefix}_{completion_id.replace('-', '')}_{output_index}"


def completion_of_response(response: Any) -> str | None:
    """The completion behind a response's id, or None for an id that isn't ours."""
    return _completion(_RESPONSE, response)


def completion_of_item(item: Any) -> str | None:
    """The completion that an echoed item was sampled in, or None for an id that isn't ours."""
    return _completion(_ITEM, item)


def _completion(form: re.Pattern[str], sent: Any) -> str | None:
    found = form.fullmatch(sent) if isinstance(sent, str) else None
    return str(uuid.UUID(hex=found[1])) if found else None
