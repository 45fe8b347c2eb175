"""Trees as TOML."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnesses.errors import HarnessError
from harnesses.toml import toml_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    TEXTS | st.booleans() | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@given(tree=st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_is_written_is_read(tree: dict[str, object]) -> None:
    """Any tree of texts, numbers, booleans, lists and mappings comes back as it was."""
    assert tomllib.loads(toml_text(tree)) == tree


@pytest.mark.parametrize("tree", [{"a": None}, {"a": [{"b": None}]}, ["a"], "a"])
def test_what_has_no_form(tree: object) -> None:
    """TOML has no null and needs a mapping at its top."""
    with pytest.raises(HarnessError, match="TOML"):
        toml_text(tree)
