"""Avro schemas from record classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import fastavro
import pytest

from schemas.derive import avro_schema, is_json, optional_of
from schemas.records import RECORD_TYPES, CompletionRecord, Json, Record, SessionEvent, Status


def _field(schema: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [f for f in schema["fields"] if f["name"] == name]
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("cls", RECORD_TYPES, ids=lambda c: c.NAME)
def test_every_field_has_a_default(cls: type[Record]) -> None:
    """Only fields with defaults can be added and read in both directions, nested ones too."""

    def walk(schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                walk(branch)
        elif isinstance(schema, dict):
            for field in schema.get("fields", ()):
                assert "default" in field, f"{schema['name']}.{field['name']}"
                walk(field["type"])
            walk(schema.get("items"))
            walk(schema.get("values"))
            if schema.get("type") == "enum":
                assert schema["default"] == "UNKNOWN"

    walk(avro_schema(cls))


@pytest.mark.parametrize("cls", RECORD_TYPES, ids=lambda c: c.NAME)
def test_only_wide_numbers(cls: type[Record]) -> None:
    """Int and float could never be widened under FULL compatibility, so nothing but long and double occurs."""
    text = str(avro_schema(cls))
    assert "'int'" not in text
    assert "'float'" not in text
    fastavro.parse_schema(avro_schema(cls))


def test_token_arrays_name_their_dtype() -> None:
    """The doc of a bytes field says how to read it."""
    schema = avro_schema(CompletionRecord)
    assert _field(schema, "output_ids")["type"] == "bytes"
    assert "int32" in _field(schema, "output_ids")["doc"]
    assert "float32" in _field(schema, "logprobs")["doc"]


def test_open_fields_are_json_strings() -> None:
    """A Json field is a plain Avro string, its doc says so, and its default is JSON text."""
    field = _field(avro_schema(CompletionRecord), "messages")
    assert field == {"name": "messages", "type": "string", "doc": "JSON text", "default": "[]"}


def test_a_type_is_defined_once_and_then_named() -> None:
    """Avro refuses a second definition of the same name, so the second use is a reference."""
    schema = avro_schema(SessionEvent)
    text = str(schema)
    assert text.count("'name': 'Status'") == 1
    assert _field(schema, "status")["default"] == Status.NONE


def test_hints() -> None:
    """Only `X | None` is optional, and only Json is JSON."""
    assert optional_of(int | None) is int
    assert optional_of(int | str | None) is None
    assert optional_of(int) is None
    assert is_json(Json)
    assert not is_json(bytes)


def test_an_unsupported_type_is_refused() -> None:
    """A field whose type Avro can't hold fails at derivation, not at the first record."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Odd(Record):
        NAME: ClassVar[str] = "odd"

        when: complex = 0j

    with pytest.raises(KeyError):
        avro_schema(Odd)
