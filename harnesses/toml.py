"""A tree as TOML, for the harness that reads nothing else: one line per key, what is nested as inline tables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from harnesses.errors import HarnessError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(tree: object) -> str:
    """The document of a mapping of texts, numbers, booleans, lists and mappings.

    Raises:
        HarnessError: something in it has no form in TOML (a null, for example).
    """
    if not isinstance(tree, Mapping):
        raise HarnessError("a TOML file needs a mapping at its top")
    return "".join(f"{_key(str(key))} = {_value(item)}\n" for key, item in tree.items())


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    # JSON's escapes are TOML's too; only DEL, which JSON lets through, may not stand there bare.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(str(key))} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise HarnessError(f"TOML has no form for {value!r:.40}")
