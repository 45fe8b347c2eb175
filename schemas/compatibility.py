"""The gate on schema changes: FULL_TRANSITIVE, by the reader/writer checker of the `avro` library.

Every version of a record must read what every other version wrote.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import avro.schema
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from schemas import registry


def incompatibilities(reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    """Why `reader` can't read what `writer` wrote; empty when it can."""
    pair = [avro.schema.parse(json.dumps(s)) for s in (reader, writer)]
    result = ReaderWriterCompatibilityChecker().get_compatibility(*pair)
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    return sorted(result.messages) or ["incompatible, for a reason that the checker doesn't name"]


def check_all() -> list[str]:
    """Every violation among all pairs of frozen versions, one line each."""
    lines = []
    by_record = itertools.groupby(
        sorted(registry.frozen_schemas().values(), key=lambda s: (s.record, s.version)), key=lambda s: s.record
    )
    for record, group in by_record:
        for a, b in itertools.permutations(list(group), 2):
            lines += [
                f"{record}: v{a.version} can't read v{b.version}: {why}"
                for why in incompatibilities(a.schema, b.schema)
            ]
    return lines


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
