"""Freeform tools."""

from __future__ import annotations

from typing import Any

import pytest

from capture_proxy.dialects.body import Notes
from capture_proxy.dialects.freeform import freeform_function, freeform_input


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input":"a\\n\\"b\\" \\\\n é"}', 'a\n"b" \\n é'),
        ('"bare"', "bare"),
        ('{"patch":"one other key"}', "one other key"),
        ('{"a":"x","b":"y"}', '{"a":"x","b":"y"}'),
        ('{"a":1}', '{"a":1}'),
        ("not json", "not json"),
        ("{}", "{}"),
    ],
)
def test_the_raw_input(arguments: str, text: str) -> None:
    """Unwrapped where it is unambiguous, else as it stands."""
    assert freeform_input(arguments) == text


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "grammar", "syntax": "regex", "definition": "a+"},
        {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}},
    ],
)
def test_a_grammar_is_told_in_words(wanted: dict[str, Any]) -> None:
    """Both APIs' forms; noted, since sampling isn't bound to it."""
    notes = Notes()
    function = freeform_function("t", "Does it.", wanted, notes)
    assert function["description"] == "Does it.\n\nThe input must match this regex grammar:\na+"
    assert notes.sorted() == ("carried as text: grammar of a custom tool",)


def test_plain_text_needs_no_words() -> None:
    """No description and no grammar: none is invented."""
    assert "description" not in freeform_function("t", None, {"type": "text"}, Notes())
