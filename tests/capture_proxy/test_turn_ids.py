"""The call's id inside opaque fields and tool-call ids."""

from __future__ import annotations

import base64
import uuid

import pytest

from capture_proxy.reply import tool_call_id
from capture_proxy.turn_ids import completion_of, completion_of_tool_call, take_turn_ids, turn_token

COMPLETION = str(uuid.uuid5(uuid.NAMESPACE_URL, "a call"))


def test_a_mark_leads_back_to_its_call() -> None:
    """What a client echoes verbatim names the completion it came from, and decodes as base64."""
    token = turn_token(COMPLETION)
    assert base64.b64decode(token)
    assert completion_of(token) == COMPLETION


@pytest.mark.parametrize("foreign", ["", "skip_thought_signature_validator", "QUJD", "ä", None, 7, "x" * 32])
def test_a_foreign_mark_names_nothing(foreign: object) -> None:
    """A vendor's signature, an empty one, or no string at all is no call of ours."""
    assert completion_of(foreign) is None


def test_a_tool_call_id_leads_back_to_its_call() -> None:
    """Tool-call ids survive in every client but two, so they name the call as well."""
    assert completion_of_tool_call(tool_call_id(COMPLETION, 3)) == COMPLETION
    assert completion_of_tool_call("toolu_01") is None
    assert completion_of_tool_call(None) is None


def test_marks_are_taken_off_the_messages() -> None:
    """The marks are for lineage; a renderer never sees them."""
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "turn_id": COMPLETION}]
    assert take_turn_ids(messages) == ("", COMPLETION)
    assert messages[1] == {"role": "assistant", "content": "y"}
