"""Hypothesis strategies for records, generated from their annotations, so that a new field is tested at once."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_origin

from hypothesis import strategies as st

from schemas.derive import field_hints, is_json, optional_of
from schemas.records import Record
from schemas.records.base import WireEnum

LONGS = st.integers(-(2**63), 2**63 - 1)
# Any text that UTF-8 can hold; NUL and line separators included.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# JSON as harnesses send it: lone surrogates, NUL, and whole numbers far beyond 64 bits.
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
_PRIMITIVES: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXTS,
    int: LONGS,
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=32),
}


def of_hint(hint: Any) -> st.SearchStrategy[Any]:
    """Values of one field."""
    if is_json(hint):
        return JSON_VALUES
    if get_origin(hint) is not None and (inner := optional_of(hint)) is not None:
        return st.none() | of_hint(inner)
    if get_origin(hint) is list:
        return st.lists(of_hint(get_args(hint)[0]), max_size=3)
    if get_origin(hint) is dict:
        return st.dictionaries(TEXTS, of_hint(get_args(hint)[1]), max_size=3)
    if hasattr(hint, "__metadata__"):
        return of_hint(get_args(hint)[0])
    if isinstance(hint, type) and issubclass(hint, WireEnum):
        return st.sampled_from(list(hint))
    if dataclasses.is_dataclass(hint):
        return of_record(hint)  # type: ignore[arg-type]
    return _PRIMITIVES[hint]


def of_record(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Instances of a record class with every field drawn."""
    return st.builds(cls, **{name: of_hint(hint) for name, hint in field_hints(cls).items()})


def any_record(classes: tuple[type[Record], ...]) -> st.SearchStrategy[Any]:
    """Instances of any of these classes."""
    return st.one_of([of_record(cls) for cls in classes])
