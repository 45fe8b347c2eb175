"""An evaluator as one types it: `NAME`, `NAME:key=value,…` or `NAME:{json}`; a NAME may be `module:Class`."""

from __future__ import annotations

import json
import re
from typing import Any

from compose.errors import usage
from schemas.task import EvaluatorSpec

_PAIR = re.compile(r"[A-Za-z_]\w*=")


def parse_evaluator(text: str) -> EvaluatorSpec:
    """The evaluator that a text names; a usage error otherwise. Its options are checked elsewhere."""
    name, options = text, dict[str, Any]()
    if ":{" in text:
        name, _, body = text.partition(":{")
        try:
            options = json.loads("{" + body)
        except json.JSONDecodeError as exc:
            raise usage(
                f"--evaluator {text!r}: its options are no JSON: {exc}", hint=f"--evaluator '{name}:{{}}'"
            ) from exc
    else:
        for found in re.finditer(":", text):
            if _PAIR.match(text, found.end()):
                name, body = text[: found.start()], text[found.end() :]
                options = dict(_pair(text, item) for item in re.split(r",(?=[A-Za-z_]\w*=)", body))
                break
    if not name:
        raise usage(f"--evaluator {text!r} names no evaluator", hint="--evaluator swebench")
    return EvaluatorSpec(name=name, options=options)


def _pair(text: str, item: str) -> tuple[str, Any]:
    name, separator, value = item.partition("=")
    if not separator:
        raise usage(f"--evaluator {text!r}: {item!r} is no key=value")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
