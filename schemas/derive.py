"""Avro schemas from record classes: the dataclass is what we write, the .avsc file is what it was frozen as.

`python -m schemas.derive` writes `avro/<record>/v<N+1>.avsc` and its registry entry for each record whose class no
longer matches its newest frozen version; a test fails when somebody forgot to.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from schemas.records.base import Record, WireEnum

NAMESPACE = "io.polynya"
_PRIMITIVES: dict[type, str] = {str: "string", int: "long", float: "double", bool: "boolean", bytes: "bytes"}


@functools.cache
def field_hints(cls: type) -> dict[str, Any]:
    """The resolved annotations of a record's fields, with their `Annotated` notes."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def is_json(hint: Any) -> bool:
    """Whether a field is of open shape and travels as a JSON string."""
    return get_origin(hint) is Annotated and get_args(hint)[1] == "json"


def is_late(hint: Any) -> bool:
    """Whether a JSON field is parsed only when it is asked for; see `records.base.ReadsLate`."""
    return is_json(hint) and "late" in get_args(hint)


def optional_of(hint: Any) -> Any | None:
    """The X of an `X | None` hint, or None when the hint isn't optional."""
    if get_origin(hint) in (Union, types.UnionType):
        args = [a for a in get_args(hint) if a is not type(None)]
        if len(args) == 1 and len(args) < len(get_args(hint)):
            return args[0]
    return None


def avro_name(cls: type) -> str:
    """The record's full name in Avro."""
    return f"{NAMESPACE}.{cls.__name__}"


def _type_of(hint: Any, seen: set[str]) -> Any:
    if is_json(hint):
        return "string"
    if get_origin(hint) is Annotated:
        return _type_of(get_args(hint)[0], seen)
    if (inner := optional_of(hint)) is not None:
        return ["null", _type_of(inner, seen)]
    origin = get_origin(hint)
    if origin is list:
        return {"type": "array", "items": _type_of(get_args(hint)[0], seen)}
    if origin is dict:
        return {"type": "map", "values": _type_of(get_args(hint)[1], seen)}
    if isinstance(hint, type) and issubclass(hint, WireEnum):
        return _named(avro_name(hint), seen, lambda: _enum(hint))
    if dataclasses.is_dataclass(hint):
        cls = typing.cast("type", hint)
        return _named(avro_name(cls), seen, lambda: _record(cls, seen))
    return _PRIMITIVES[hint]


def _named(name: str, seen: set[str], build: typing.Callable[[], dict[str, Any]]) -> Any:
    if name in seen:
        return name
    seen.add(name)
    return build()


def _enum(cls: type[WireEnum]) -> dict[str, Any]:
    return {
        "type": "enum",
        "name": cls.__name__,
        "namespace": NAMESPACE,
        "symbols": [m.value for m in cls],
        "default": "UNKNOWN",
    }


def _default(field: dataclasses.Field[Any], hint: Any) -> Any:
    if is_json(hint):
        value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        return json.dumps(value)
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
        return {} if dataclasses.is_dataclass(value) else value
    if isinstance(field.default, bytes):
        return field.default.decode("latin-1")  # how Avro's JSON spells bytes
    return field.default


def _record(cls: type, seen: set[str]) -> dict[str, Any]:
    fields = []
    hints = field_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        entry: dict[str, Any] = {"name": field.name, "type": _type_of(hint, seen)}
        if get_origin(hint) is Annotated:
            # No logical type for JSON: readers warn about those that they don't know.
            entry["doc"] = "JSON text" if is_json(hint) else get_args(hint)[1]
        if dataclasses.is_dataclass(hint):
            entry["type"] = ["null", entry["type"]]  # an absent nested record reads as its defaults
            entry["default"] = None
        else:
            entry["default"] = _default(field, hint)
        fields.append(entry)
    doc = " ".join((cls.__doc__ or "").split())
    return {"type": "record", "name": cls.__name__, "namespace": NAMESPACE, "doc": doc, "fields": fields}


def avro_schema(cls: type[Record]) -> dict[str, Any]:
    """The Avro schema that a record class stands for today."""
    return _record(cls, {avro_name(cls)})


if __name__ == "__main__":
    from schemas.registry import freeze_changed

    for line in freeze_changed():
        print(line)  # noqa: T201 - a command's output
