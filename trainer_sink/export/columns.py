"""Columns, said once: as a data set's card names their types, and as Arrow stores them.

A column is `{"name", "dtype"}`, `{"name", "list": dtype or columns}` or `{"name", "struct": columns}`, which is how the YAML of a
card spells them. The type `json` is text on the disk and the value itself when `datasets` (4.7 or newer) has loaded it: objects
whose keys differ from row to row have no other type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from schemas import json_text
from trainer_sink.export.shape import Shape

Column = Mapping[str, Any]
Columns = Sequence[Column]

JSON: Final = "json"


def scalar(name: str, dtype: str = "string") -> Column:
    """A column of plain values."""
    return {"name": name, "dtype": dtype}


def message_columns(shape: Shape) -> Columns:
    """A message of a conversation, with every key that one may have."""
    function = [scalar("name"), scalar("arguments", "string" if shape.arguments == "string" else JSON)]
    call = [scalar("id"), scalar("type"), {"name": "function", "struct": function}]
    return [
        scalar("role"),
        scalar("content", JSON if shape.images == "keep" else "string"),
        scalar("reasoning_content"),
        {"name": "tool_calls", "list": call},
        scalar("tool_call_id"),
        scalar("name"),
    ]


def tools_column(shape: Shape) -> Column:
    """The tools: objects of any form, or their text."""
    return scalar("tools", JSON if shape.tools == "list" else "string")


def loose(columns: Columns) -> Columns:
    """The columns of JSON lines: what is nested is JSON there already, and keys that are missing stay so."""
    return [c if "dtype" in c else {"name": c["name"], "list": JSON} for c in columns]


def stored(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """A row as Arrow stores it: `json` as text, keys that are missing as null."""
    return {c["name"]: _stored(row.get(c["name"]), c) for c in columns}


def _stored(value: Any, column: Column) -> Any:
    if value is None:
        return None
    if column.get("dtype") == JSON:
        return json_text.dump(value)
    if isinstance(inner := column.get("list"), list):
        return [stored(one, inner) for one in value]
    if struct := column.get("struct"):
        return stored(value, struct)
    return value


def arrow_schema(columns: Columns) -> Any:
    """The Arrow schema. Needs pyarrow."""
    import pyarrow as pa

    return pa.schema([(c["name"], _arrow_type(c)) for c in columns])


def _arrow_type(column: Column) -> Any:
    import pyarrow as pa

    if isinstance(inner := column.get("list"), str):
        return pa.list_(_scalar_type(inner))
    if inner is not None:
        return pa.list_(pa.struct([(c["name"], _arrow_type(c)) for c in inner]))
    if struct := column.get("struct"):
        return pa.struct([(c["name"], _arrow_type(c)) for c in struct])
    return _scalar_type(column["dtype"])


def _scalar_type(dtype: str) -> Any:
    import pyarrow as pa

    if dtype.startswith("timestamp"):
        return pa.timestamp("ms", tz="UTC")
    return pa.type_for_alias("string" if dtype == JSON else dtype)


def columns_of(schema: Any) -> Columns:
    """The columns of an Arrow schema of plain values and lists of them, as a card names them."""
    import pyarrow as pa

    def name(kind: Any) -> str:
        return {"double": "float64", "float": "float32"}.get(str(kind), str(kind))

    return [
        {"name": f.name, "list": name(f.type.value_type)} if pa.types.is_list(f.type) else scalar(f.name, name(f.type))
        for f in schema
    ]
