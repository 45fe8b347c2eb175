"""The gate on schema changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from schemas import compatibility, registry
from schemas.records import Control
from schemas.registry import FrozenSchema

BASE: dict[str, Any] = {
    "type": "record",
    "name": "Thing",
    "namespace": "io.polynya",
    "fields": [
        {"name": "id", "type": "string", "default": ""},
        {"name": "count", "type": "long", "default": 0},
        {"name": "small", "type": "int", "default": 0},
        {"name": "ids", "type": "bytes", "default": ""},
        {
            "name": "state",
            "type": {"type": "enum", "name": "State", "symbols": ["UNKNOWN", "a"], "default": "UNKNOWN"},
            "default": "UNKNOWN",
        },
        {
            "name": "inner",
            "type": [
                "null",
                {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "double", "default": 0.0}]},
            ],
            "default": None,
        },
    ],
}


def _gate(*versions: dict[str, Any]) -> list[str]:
    return compatibility.check(FrozenSchema(i, "thing", i, s) for i, s in enumerate(versions, start=1))


def _changed(index: int, **new: Any) -> dict[str, Any]:
    schema = copy.deepcopy(BASE)
    schema["fields"][index] |= new
    return schema


def _added(**field: Any) -> dict[str, Any]:
    schema = copy.deepcopy(BASE)
    schema["fields"].append(field)
    return schema


def test_the_frozen_schemas_pass() -> None:
    """FULL_TRANSITIVE holds for what is in the repository."""
    assert compatibility.check_all() == []


@pytest.mark.parametrize(
    "good",
    [
        _added(name="note", type="string", default=""),
        _added(name="maybe", type=["null", "long"], default=None),
        _changed(4, type=BASE["fields"][4]["type"] | {"symbols": ["UNKNOWN", "a", "b"]}),
        copy.deepcopy(BASE) | {"doc": "reworded"},
    ],
    ids=["field with default", "optional field", "enum symbol", "doc"],
)
def test_a_good_change_passes(good: dict[str, Any]) -> None:
    """What readers on both sides can live with is allowed."""
    assert _gate(BASE, good) == []


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (_changed(2, type="long"), "reader type: int not compatible with writer type: long"),
        (_changed(1, type="string", default=""), "not compatible"),
        (_changed(0, name="identity"), "field id is gone"),
        (copy.deepcopy(BASE) | {"name": "Other"}, "expected"),
        (_added(name="must", type="string"), "must"),
        (_changed(1, type=["null", "long"], default=None), "not compatible|lacking"),
        (_changed(3, type="string"), "changes between text and bytes"),
        (copy.deepcopy(BASE) | {"fields": BASE["fields"][1:]}, "field id is gone"),
        (
            _changed(5, type=["null", {"type": "record", "name": "Inner", "fields": []}]),
            r"field inner\.x is gone",
        ),
    ],
    ids=["int to long", "type", "rename", "record name", "no default", "wider", "bytes to text", "removal", "nested"],
)
def test_a_bad_change_fails(bad: dict[str, Any], why: str) -> None:
    """The gate names the record, the versions and the reason."""
    lines = _gate(BASE, bad)
    assert lines
    assert any(pytest_match(why, line) for line in lines), lines
    assert all(line.startswith("thing: v") for line in lines)


def pytest_match(pattern: str, text: str) -> bool:
    """Whether the pattern occurs in the text."""
    import re

    return re.search(pattern, text) is not None


def test_the_gate_is_transitive() -> None:
    """v3 is compared with v1 too, not only with v2."""
    middle = _added(name="note", type="string", default="")
    last = _added(name="note", type="string", default="")
    last["fields"][2]["type"] = "long"
    assert any("v1" in line and "v3" in line for line in _gate(BASE, middle, last))


def test_the_command_fails_on_a_class_changed_without_freezing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m schemas.compatibility` exits 1 and says what to run; 0 when all is well."""
    assert compatibility.main() == 0
    assert "FULL_TRANSITIVE holds" in capsys.readouterr().out
    monkeypatch.setattr(registry, "changed_records", lambda: [Control])
    assert compatibility.main() == 1
    assert "control: the class changed; run python -m schemas.derive" in capsys.readouterr().out
