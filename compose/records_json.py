"""Records as JSON for people and scripts: token arrays become lists, enums their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Final, get_args, get_origin

from schemas.arrays import unpack_ids, unpack_logprobs, unpack_mask
from schemas.derive import field_hints, is_json
from schemas.records import IdBytes, LogprobBytes, MaskBytes

_UNPACK: Final[dict[Any, Callable[[bytes], Any]]] = {
    IdBytes: unpack_ids,
    LogprobBytes: unpack_logprobs,
    MaskBytes: unpack_mask,
}


def as_json(record: Any) -> dict[str, Any]:
    """A record's fields as JSON values, nested records and token arrays included."""
    cls: Any = type(record)
    hints = field_hints(cls)
    return {name: _value(getattr(record, name), hint) for name, hint in hints.items()}


def _value(value: Any, hint: Any) -> Any:
    if is_json(hint):
        return value
    if isinstance(value, bytes):
        unpack = _UNPACK.get(hint) if get_origin(hint) is Annotated else None
        return unpack(value).tolist() if unpack else value.hex()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_json(value)
    if isinstance(value, list):
        inner = get_args(hint)
        return [_value(v, inner[0] if inner else None) for v in value]
    return value
