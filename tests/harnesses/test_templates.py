"""Filling `{placeholders}` as data, and turning them into environment variables in shell scripts."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnesses.errors import HarnessError
from harnesses.templates import fill, fill_tree, names, shell_script, shell_variable

NASTY = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "\\",
    "a\nb",
    "*",
    "{model}",
    "$HOME",
    "-n",
    "",
]
# What an environment variable can hold: any text without NUL and lone surrogates.
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def run(script: str, instruction: str) -> str:
    """What a real shell makes of a script with an instruction."""
    code = shell_script(script, {"instruction"}, "command")
    env = {"PATH": "/usr/bin:/bin", shell_variable("instruction"): instruction}
    return subprocess.run(["/bin/sh", "-c", code], env=env, capture_output=True, check=True, timeout=20).stdout.decode()


def test_known_placeholders_are_filled_once() -> None:
    """A value that looks like a placeholder is not filled again; other braces stay."""
    assert fill("{a}-{b}-{other}-${a}", {"a": "{b}", "b": "2"}) == "{b}-2-{other}-${a}"


def test_trees_keep_types() -> None:
    """A string that is one placeholder becomes the value itself; inside a longer one it becomes text."""
    tree = {"n": "{size}", "s": "size {size}", "{name}": ["{flag}", 3, None]}
    filled = fill_tree(tree, {"size": 5, "name": "key", "flag": True})
    assert filled == {"n": 5, "s": "size 5", "key": [True, 3, None]}


def test_names() -> None:
    """The placeholders of a text, without the shell's own expansions."""
    assert names("{a} ${b} {c_1} {D}") == {"a", "c_1"}


@pytest.mark.parametrize("nasty", NASTY)
@pytest.mark.parametrize(
    "script", ["printf %s {instruction}", 'printf %s "{instruction}"', "printf %s ''{instruction}''"]
)
def test_values_are_never_code(script: str, nasty: str) -> None:
    """Bare or in double quotes, a value arrives as one word, whatever is in it."""
    assert run(script, nasty) == nasty


@settings(deadline=None)  # each example runs a shell
@given(value=TEXTS)
def test_any_value_arrives_whole(value: str) -> None:
    """The same for any text at all."""
    assert run('printf "%s|" before{instruction} "in {instruction}"', value) == f"before{value}|in {value}|"


def test_single_quotes_are_refused() -> None:
    """Inside single quotes nothing could be expanded: the error says so, and what to write instead."""
    with pytest.raises(HarnessError, match=r"harness\.options\.command: \{instruction\} stands inside single quotes"):
        shell_script("sh -c 'echo {instruction}'", {"instruction"}, "harness.options.command")


def test_escapes_and_foreign_braces_are_left_alone() -> None:
    """Escaped quotes don't open a quotation, and unknown braces are somebody else's."""
    script = r"""awk '{print $1}' \' {instruction} "\"{instruction}" ${HOME}"""
    expected = r"""awk '{print $1}' \' "${POLYNYA_INSTRUCTION}" "\"${POLYNYA_INSTRUCTION}" ${HOME}"""
    assert shell_script(script, {"instruction"}, "command") == expected
