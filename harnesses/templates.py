"""`{name}` templates: filled strictly, and never by way of a shell.

A placeholder is `{name}` with a lower-case name that is known; everything else with braces (awk programs, JSON, `${HOME}`)
is left as it is. Values go into argv elements, environment values, file texts and JSON trees as data. A shell *script* is
the one place where text is parsed again later: there a placeholder turns into a reference to an environment variable
(`shell_script`), so that no value, whatever it holds, is ever read as code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from harnesses.errors import HarnessError

# Not after `$`: `${model}` is the shell's own parameter expansion.
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z][a-z0-9_]*)\}")


def names(text: str) -> set[str]:
    """The placeholder names that stand in `text`, known or not."""
    return set(_PLACEHOLDER.findall(text))


def fill(text: str, variables: Mapping[str, str]) -> str:
    """`text` with every known placeholder replaced by its value; unknown ones stay (they are somebody's braces)."""
    return _PLACEHOLDER.sub(lambda match: variables.get(match.group(1), match.group(0)), text)


def fill_tree(value: object, variables: Mapping[str, object]) -> object:
    """A JSON tree with its strings (keys too) filled.

    A string that is exactly one placeholder takes the value with its type, so that `"{max_tokens}"` gives a number; in a list, the
    items of a list value take its place. A key or a list item whose placeholder has no value (None) is left out.
    """
    if isinstance(value, str):
        name = whole_name(value)
        if name in variables:
            return variables[name]
        return fill(value, {name: str(item) for name, item in variables.items() if item is not None})
    if isinstance(value, Mapping):
        return {
            str(fill_tree(key, variables)): fill_tree(item, variables)
            for key, item in value.items()
            if not _is_absent(item, variables)
        }
    if isinstance(value, list | tuple):
        filled: list[object] = []
        for item in value:
            if _is_absent(item, variables):
                continue
            made = fill_tree(item, variables)
            filled += made if isinstance(made, list) and isinstance(item, str) else [made]
        return filled
    return value


def whole_name(text: str) -> str:
    """The placeholder's name where the text is one placeholder and nothing else, or ""."""
    whole = _PLACEHOLDER.fullmatch(text)
    return whole.group(1) if whole else ""


def _is_absent(value: object, variables: Mapping[str, object]) -> bool:
    name = whole_name(value) if isinstance(value, str) else ""
    return name in variables and variables[name] is None


def shell_variable(name: str) -> str:
    """The environment variable that carries the placeholder `name` into a shell script."""
    return f"POLYNYA_{name.upper()}"


def shell_script(script: str, known: set[str], path: str) -> str:
    """`script` with each known placeholder turned into a quoted reference to its environment variable.

    Outside of quotes `{instruction}` becomes `"$POLYNYA_INSTRUCTION"`, inside double quotes `${POLYNYA_INSTRUCTION}`: one
    word either way. Inside single quotes neither can work, so that is refused.

    Raises:
        HarnessError: a known placeholder stands inside single quotes; the message starts with `path`.
    """
    out: list[str] = []
    quote = ""
    position = 0
    while position < len(script):
        character = script[position]
        match = _PLACEHOLDER.match(script, position)
        if match and match.group(1) in known:
            variable = shell_variable(match.group(1))
            if quote == "'":
                raise HarnessError(
                    f"{path}: {match.group(0)} stands inside single quotes, where a shell expands nothing; write it bare or in "
                    f'double quotes (it is quoted for you), or read "${variable}" in an inner script'
                )
            out.append(f"${{{variable}}}" if quote else f'"${{{variable}}}"')
            position = match.end()
            continue
        if character == "\\" and quote != "'":
            out.append(script[position : position + 2])
            position += 2
            continue
        if character in "'\"":
            if not quote:
                quote = character
            elif quote == character:
                quote = ""
        out.append(character)
        position += 1
    return "".join(out)
