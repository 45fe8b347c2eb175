"""The gate on schema changes: FULL_TRANSITIVE, by the reader/writer checker of the `avro` library.

Every version of a record must read what every other version wrote. Two rules go beyond that checker, because both
lose data without an error: a field is never removed or renamed, and text never becomes bytes or back.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any, cast

import avro.compatibility
import avro.schema

from schemas import registry
from schemas.registry import FrozenSchema


def _compatibility(reader: dict[str, Any], writer: dict[str, Any]) -> avro.compatibility.SchemaCompatibilityResult:
    """The checker's verdict; it has no annotations, so it is wrapped here and nowhere else."""
    checker = cast("Any", avro.compatibility).ReaderWriterCompatibilityChecker()
    pair = (avro.schema.parse(json.dumps(s)) for s in (reader, writer))
    return cast("avro.compatibility.SchemaCompatibilityResult", checker.get_compatibility(*pair))


def incompatibilities(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    """Why `reader` can't read what `writer` wrote; empty when it can."""
    result = _compatibility(reader, writer)
    if result.compatibility is avro.compatibility.SchemaCompatibilityType.compatible:
        return []
    places = ", ".join(sorted(result.locations))
    return [f"{message} (at {places})" for message in sorted(result.messages)] or [f"incompatible at {places}"]


def _fields(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a schema, nested ones too, as (path, type)."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _fields(branch, path)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            inner = f"{path}.{field['name']}".lstrip(".")
            yield inner, field["type"]
            yield from _fields(field["type"], inner)
        for items in ("items", "values"):
            if items in schema:
                yield from _fields(schema[items], path)


def losses(older: dict[str, Any], newer: dict[str, Any]) -> list[str]:
    """What `newer` drops in silence of `older`: removed or renamed fields, text read as bytes or bytes as text."""
    then, now = dict(_fields(older)), dict(_fields(newer))
    lines = [f"field {path} is gone: a field is never removed or renamed" for path in then if path not in now]
    for path in then.keys() & now.keys():
        kinds = {t["type"] if isinstance(t, dict) else t for t in (then[path], now[path]) if not isinstance(t, list)}
        if kinds == {"string", "bytes"}:
            lines.append(f"field {path} changes between text and bytes")
    return sorted(lines)


def check(schemas: Iterable[FrozenSchema]) -> list[str]:
    """Every violation among all pairs of versions of the same record, one line each."""
    lines = []
    ordered = sorted(schemas, key=lambda s: (s.record, s.version))
    for record, group in itertools.groupby(ordered, key=lambda s: s.record):
        versions = list(group)
        for a, b in itertools.permutations(versions, 2):
            lines += [
                f"{record}: v{a.version} can't read v{b.version}: {w}" for w in incompatibilities(a.schema, b.schema)
            ]
        for a, b in itertools.combinations(versions, 2):
            lines += [f"{record}: v{b.version} after v{a.version}: {why}" for why in losses(a.schema, b.schema)]
    return lines


def check_all() -> list[str]:
    """Every violation in our own registry, one line each."""
    return check(registry.frozen_schemas().values())


def main() -> int:
    """Print violations and records that were changed without freezing; 1 when there are any."""
    lines = check_all()
    lines += [f"{c.NAME}: the class changed; run python -m schemas.derive" for c in registry.changed_records()]
    for line in lines:
        print(line)  # noqa: T201 - a command's output
    if not lines:
        print(f"{len(registry.frozen_schemas())} frozen schemas, FULL_TRANSITIVE holds")  # noqa: T201
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
