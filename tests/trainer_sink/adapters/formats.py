"""Checking a value against a trainer's own field list: every field with its type, none missing, none besides."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, TypeAdapter, create_model


def check(fields: dict[str, Any], value: dict[str, Any]) -> None:
    """ValidationError unless `value` has exactly these fields, with values of these types, nothing converted."""
    config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
    names = {
        f"field_{i}": name for i, name in enumerate(fields)
    }  # a model's own names may not begin with an underscore
    model = create_model("Format", __config__=config, **{field: (fields[name], ...) for field, name in names.items()})
    assert value.keys() == fields.keys(), (value.keys() - fields.keys(), fields.keys() - value.keys())
    TypeAdapter(model).validate_python({field: value[name] for field, name in names.items()})
