"""Validation errors as one line: the field's path, what is wrong and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ValidationError

# pydantic's words speak of its own machinery here; these speak of the file.
WORDS = {
    "extra_forbidden": "there is no such field",
    "missing": "this field is needed",
    "model_type": "must be a mapping of fields",
}


def path_of(location: tuple[int | str, ...]) -> str:
    """`('prepare', 0, 'exec')` as `prepare[0].exec`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "(the whole)"


def first_problem(error: ValidationError) -> str:
    """All problems of a validation, one a line, each with its field's path."""
    return "\n".join(f"{path_of(p['loc'])}: {WORDS.get(p['type'], p['msg'])}" for p in error.errors())


def hint_for(error: ValidationError, model: type[BaseModel]) -> str:
    """What to type instead of the first unknown field, or the fields that there are."""
    # A mistyped field is one that is unknown and, if it was needed, one that is missing: the first tells more.
    for problem in sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden"):
        if problem["type"] == "extra_forbidden":
            known = _fields_at(model, problem["loc"][:-1])
            return nearest(str(problem["loc"][-1]), known, "the fields here are")
        if problem["type"] == "missing":
            return f"add the field {path_of(problem['loc'])}"
    return "correct the field and submit again; nothing was submitted"


def nearest(given: str, known: Collection[str], otherwise: str) -> str:
    """The name that was meant, most likely; where none is like it, `otherwise` and all that there are."""
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise}: {', '.join(known)}"


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    current: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        annotation = current.model_fields[part].annotation
        inner = [a for a in getattr(annotation, "__args__", ()) if isinstance(a, type) and issubclass(a, BaseModel)]
        current = inner[0] if inner else annotation
        if not (isinstance(current, type) and issubclass(current, BaseModel)):
            return []
    return sorted(current.model_fields)
