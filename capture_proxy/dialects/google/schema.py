"""The vendor's `Schema` objects as JSON Schema."""

from __future__ import annotations

from typing import Final

from capture_proxy.dialects.body import Notes
from capture_proxy.dialects.google.fields import camel
from capture_proxy.reply import Json

_TYPES: Final = frozenset({"STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"})
_COUNTS: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
"""64-bit fields, which travel as strings."""

_NAMED: Final = frozenset({"properties", "patternProperties", "defs", "$defs", "definitions"})
_LISTED: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_NESTED: Final = frozenset({"items", "additionalProperties", "not"})
_RENAMED: Final = {"defs": "$defs", "ref": "$ref"}


def json_schema(schema: Json, notes: Notes) -> Json:
    """JSON Schema of a `Schema`: lower-case types, `nullable` as a type. Names, values and examples stay as they are."""
    if not isinstance(schema, dict):
        return schema
    read: dict[str, Json] = {}
    for name, value in camel(schema).items():
        key = _RENAMED.get(name, name)
        if name in {"nullable", "type"}:
            continue
        if name == "propertyOrdering":
            notes.add("ignored schema field: propertyOrdering")
        elif name in _NAMED and isinstance(value, dict):
            read[key] = {item: json_schema(inner, notes) for item, inner in value.items()}
        elif name in _LISTED and isinstance(value, list):
            read[key] = [json_schema(inner, notes) for inner in value]
        elif name in _NESTED:
            read[key] = json_schema(value, notes)
        elif name in _COUNTS and isinstance(value, str) and value.isdecimal() and len(value) < 19:
            read[key] = int(value)
        else:
            read[key] = value
    kind = _type(schema.get("type"))
    if kind is not None:
        read = {"type": kind, **read}
    return _with_null(read) if schema.get("nullable") is True else read


def _type(kind: Json) -> Json:
    if isinstance(kind, list):
        return [_type(one) for one in kind]
    if isinstance(kind, str):
        return None if kind == "TYPE_UNSPECIFIED" else kind.lower() if kind in _TYPES else kind
    return kind


def _with_null(schema: dict[str, Json]) -> dict[str, Json]:
    kind = schema.get("type")
    if isinstance(kind, str) and kind != "null":
        schema["type"] = [kind, "null"]
    elif kind is None and isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    return schema
