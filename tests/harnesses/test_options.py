"""A task's `harness.options`, checked."""

from __future__ import annotations

import pytest

from harnesses.errors import HarnessError, OptionError
from harnesses.options import OptionSpec, parse_option, validate_options

SPECS = {
    "command": OptionSpec(name="command", kind="command", required=True, help="like `run {instruction}`"),
    "env": OptionSpec(name="env", kind="mapping", default={}),
    "size": OptionSpec(name="size", kind="integer", default=5, minimum=1),
    "fast": OptionSpec(name="fast", kind="boolean"),
    "args": OptionSpec(name="args", kind="strings"),
    "model": OptionSpec(name="model", kind="string"),
}


def test_defaults_are_filled_in() -> None:
    """Absent options have their default, or None."""
    values = validate_options(SPECS, {"command": "run", "env": {"A": 1}}, "h")
    assert values == {"command": "run", "env": {"A": "1"}, "size": 5, "fast": None, "args": None, "model": None}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "harness.options.command: the harness `h` needs this option, a shell command"),
        ({"command": " "}, "harness.options.command: is empty"),
        ({"command": []}, "harness.options.command: is empty"),
        ({"command": 3}, "harness.options.command: must be a shell command"),
        ({"command": ["a", 3]}, "harness.options.command: must be a shell command"),
        ({"command": "x", "speed": 1}, "harness.options.speed: the harness `h` has no such option; it knows: args"),
        ({"command": "x", "size": 0}, "harness.options.size: must be at least 1, not 0"),
        ({"command": "x", "size": "5"}, "harness.options.size: must be a whole number, not str '5'"),
        ({"command": "x", "size": True}, "harness.options.size: must be a whole number, not bool True"),
        ({"command": "x", "fast": 1}, "harness.options.fast: must be true or false, not int 1"),
        ({"command": "x", "args": "a b"}, "harness.options.args: must be a list of texts, not str 'a b'"),
        ({"command": "x", "env": {"A": True}}, "harness.options.env.A: must be a text (quote it), not bool"),
        ({"command": "x", "env": ["A=1"]}, "harness.options.env: must be a mapping of texts to texts, not list"),
        ({"command": "x", "model": 4}, "harness.options.model: must be a text, not int 4"),
    ],
)
def test_bad_options_name_their_field(given: dict[str, object], message: str) -> None:
    """Each error begins with the field's path and says what would be right."""
    with pytest.raises(OptionError) as caught:
        validate_options(SPECS, given, "h")
    assert str(caught.value).startswith(message)
    assert str(caught.value).startswith(caught.value.path)


@pytest.mark.parametrize("raw", ["text", {"kind": "colour"}, {"kind": "string", "colour": 1}])
def test_malformed_definitions_are_refused(raw: object) -> None:
    """An option of a definition needs a kind that exists, and nothing unknown."""
    with pytest.raises(HarnessError, match=r"here\.name"):
        parse_option("name", raw, "here")
