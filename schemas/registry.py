"""The schema registry as files: `avro/<record>/v<N>.avsc` and `avro/registry.json` (schema id → record, version).

Append-only: an id, once given, names the same schema for ever. Readers that aren't ours need nothing but these
files and Confluent's framing.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.derive import avro_schema
from schemas.records import RECORD_TYPES, Record

AVRO_DIR = Path(__file__).parent / "avro"


class UnknownSchemaIdError(LookupError):
    """A value names a schema id that this registry lacks; retriable, since a newer release knows it."""

    is_retriable = True

    def __init__(self, schema_id: int) -> None:
        super().__init__(
            f"schema id {schema_id} is not in {AVRO_DIR / 'registry.json'}: its writer is newer than this process; "
            "upgrade polynya here, then start this component again"
        )
        self.schema_id = schema_id


@dataclass(frozen=True, slots=True)
class FrozenSchema:
    """One frozen schema: its id on the wire, its record, its version and its parsed JSON."""

    schema_id: int
    record: str
    version: int
    schema: dict[str, Any]


def record_class(name: str) -> type[Record]:
    """The record class with this wire name; KeyError when there is none."""
    return _classes()[name]


@functools.cache
def _classes() -> dict[str, type[Record]]:
    return {cls.NAME: cls for cls in RECORD_TYPES}


def _load(directory: Path) -> dict[int, FrozenSchema]:
    entries = json.loads((directory / "registry.json").read_text(encoding="utf-8"))
    loaded = {}
    for entry in entries:
        path = directory / entry["record"] / f"v{entry['version']}.avsc"
        schema = json.loads(path.read_text(encoding="utf-8"))
        loaded[entry["id"]] = FrozenSchema(entry["id"], entry["record"], entry["version"], schema)
    return loaded


@functools.cache
def frozen_schemas() -> dict[int, FrozenSchema]:
    """Every frozen schema by its id."""
    return _load(AVRO_DIR)


@functools.cache
def newest(record: str) -> FrozenSchema:
    """The newest frozen schema of a record; KeyError when it was never frozen (run `python -m schemas.derive`)."""
    versions = [s for s in frozen_schemas().values() if s.record == record]
    if not versions:
        raise KeyError(f"no frozen schema for {record}: run python -m schemas.derive")
    return max(versions, key=lambda s: s.version)


def find(schema_id: int) -> FrozenSchema:
    """The schema with this id; UnknownSchemaIdError when the registry lacks it."""
    try:
        return frozen_schemas()[schema_id]
    except KeyError:
        raise UnknownSchemaIdError(schema_id) from None


def changed_records() -> list[type[Record]]:
    """The record classes that differ from their newest frozen schema."""
    known = {s.record for s in frozen_schemas().values()}
    return [c for c in RECORD_TYPES if c.NAME not in known or newest(c.NAME).schema != avro_schema(c)]


def freeze_changed(directory: Path = AVRO_DIR) -> list[str]:
    """Write the next version of every changed record; returns one line for each."""
    registry = directory / "registry.json"
    entries = json.loads(registry.read_text(encoding="utf-8")) if registry.exists() else []
    lines = []
    for cls in RECORD_TYPES:
        mine = [e for e in entries if e["record"] == cls.NAME]
        latest = max((e["version"] for e in mine), default=0)
        path = directory / cls.NAME / f"v{latest}.avsc"
        if latest and json.loads(path.read_text(encoding="utf-8")) == avro_schema(cls):
            continue
        version = latest + 1
        path = directory / cls.NAME / f"v{version}.avsc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(avro_schema(cls), indent=1) + "\n", encoding="utf-8")
        schema_id = max((e["id"] for e in entries), default=0) + 1
        entries.append({"id": schema_id, "record": cls.NAME, "version": version})
        lines.append(f"froze {cls.NAME} v{version} as schema id {schema_id}")
    registry.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    frozen_schemas.cache_clear()
    newest.cache_clear()
    return lines
