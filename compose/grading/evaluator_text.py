"""An evaluator as one types it: `NAME`, `NAME:key=value,…` or `NAME:{json}`; a NAME may be `module:Class`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from compose.errors import usage
from schemas.task import EvaluatorSpec
from stage_workers import evaluators
from stage_workers.evaluators import EvaluatorError, OptionKind

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
                kinds = _kinds(name)
                pairs = (_pair(text, item) for item in re.split(r",(?=[A-Za-z_]\w*=)", body))
                options = {option: _value(kinds.get(option), value) for option, value in pairs}
                break
    if not name:
        raise usage(f"--evaluator {text!r} names no evaluator", hint="--evaluator swebench")
    return EvaluatorSpec(name=name, options=options)


def _kinds(name: str) -> Mapping[str, OptionKind]:
    try:
        return evaluators.options_of(name) or {}
    except EvaluatorError:  # refused with its reason by who checks it
        return {}


def _pair(text: str, item: str) -> tuple[str, str]:
    option, separator, value = item.partition("=")
    if not separator:
        raise usage(f"--evaluator {text!r}: {item!r} is no key=value")
    return option, value


def _value(kind: OptionKind | None, text: str) -> Any:
    """What was typed for an option of this kind: a text as it stands, anything else as JSON where it is JSON."""
    if kind == "text":
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
