"""JSON fields as text: exact where the fast library isn't."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given

from schemas import json_text
from tests.schemas.strategies import JSON_VALUES


@given(JSON_VALUES)
def test_round_trip(value: object) -> None:
    """Every JSON value comes back equal, with lone surrogates and huge numbers, and the text is plain UTF-8."""
    text = json_text.dump(value)
    assert json_text.load(text) == value
    assert json.loads(text.encode("utf-8")) == value


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30])
def test_big_numbers_stay_whole(number: int) -> None:
    """A whole number near or beyond 64 bits doesn't become a float."""
    back = json_text.load(json_text.dump({"n": number}))["n"]
    assert back == number
    assert isinstance(back, int)


@pytest.mark.parametrize("text", ["", "é", "\U0001f98a" * 30, "x" * 5_000, "\u0661" * 25, "\\ud83d"])
@pytest.mark.parametrize("digits", [18, 19, 20])
def test_numbers_are_found_in_any_text(text: str, digits: int) -> None:
    """Whatever stands around a number: one of so many digits stays whole, and other scripts' digits are letters."""
    number = int("9" * digits)
    read = json_text.load(f'{{"a": "{text}", "n": {number}, "b": "{text}"}}')
    assert read["n"] == number
    assert isinstance(read["n"], int)
    assert read["a"] == read["b"] == json.loads(f'"{text}"')


@pytest.mark.parametrize("before", range(20))
def test_numbers_are_found_at_any_place(before: int) -> None:
    """Only a part of the characters is looked at first; no place hides a number from that."""
    number = 10**18 + 10**19
    assert json_text.load(f'["{"x" * before}",{number}]')[1] == number


def test_not_a_number_becomes_null_on_both_paths() -> None:
    """NaN reads as null, whichever library wrote the text."""
    assert json_text.load(json_text.dump([float("nan")])) == [None]
    assert json_text.load(json_text.dump([float("nan"), 2**70])) == [None, 2**70]


def test_numpy_and_other_keys_are_understood_on_both_paths() -> None:
    """Arrays become lists and number keys become strings."""
    assert json_text.load(json_text.dump({1: np.array([1, 2])})) == {"1": [1, 2]}
    assert json_text.load(json_text.dump({1: np.array([1, 2]), "b": 2**70})) == {"1": [1, 2], "b": 2**70}


@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, b"bytes"])
def test_what_json_cannot_spell_is_refused(value: object) -> None:
    """A value outside JSON raises JsonTextError."""
    with pytest.raises(json_text.JsonTextError):
        json_text.dump(value)


def test_a_cycle_is_refused() -> None:
    """A list that holds itself raises instead of recursing for ever."""
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(json_text.JsonTextError):
        json_text.dump(loop)


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "[1,]", "\x00"])
def test_torn_text_is_refused(text: str) -> None:
    """Text that is no JSON raises JsonTextError."""
    with pytest.raises(json_text.JsonTextError):
        json_text.load(text)
