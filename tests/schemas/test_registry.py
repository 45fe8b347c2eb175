"""The schema registry as files: append-only, complete, and it notices a class that was changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from schemas import registry
from schemas.records import RECORD_TYPES, Control, Record, TaskRequest
from schemas.registry import UnknownSchemaIdError


@dataclass(frozen=True, slots=True, kw_only=True)
class _Widened(Record):
    """Stands for TaskRequest with one more field."""

    NAME: ClassVar[str] = "task_request"

    task_id: str = ""
    hurry: bool = False


@pytest.fixture
def changed_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if somebody had edited TaskRequest without freezing it."""
    monkeypatch.setattr(registry, "RECORD_TYPES", (_Widened, Control))
    yield
    registry.frozen_schemas.cache_clear()
    registry.newest.cache_clear()


def test_every_class_matches_its_newest_frozen_schema() -> None:
    """Nobody changed a record class without `python -m schemas.derive`."""
    assert [c.NAME for c in registry.changed_records()] == []


def test_a_class_changed_without_freezing_is_noticed(changed_class: None) -> None:
    """The changed class is named, the unchanged one isn't."""
    assert [c.NAME for c in registry.changed_records()] == ["task_request"]


def test_a_record_never_frozen_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new record without a schema counts as changed, and asking for its schema says what to do."""

    class _New(_Widened):
        NAME: ClassVar[str] = "brand_new"

    monkeypatch.setattr(registry, "RECORD_TYPES", (_New,))
    assert [c.NAME for c in registry.changed_records()] == ["brand_new"]
    with pytest.raises(KeyError, match=r"python -m schemas\.derive"):
        registry.newest("brand_new")


def test_ids_are_unique_and_every_file_is_registered() -> None:
    """One id, one file: nothing is registered twice, and no .avsc lies beside the registry."""
    entries = json.loads((registry.AVRO_DIR / "registry.json").read_text())
    files = {p.relative_to(registry.AVRO_DIR).as_posix() for p in registry.AVRO_DIR.glob("*/v*.avsc")}
    assert len({e["id"] for e in entries}) == len(entries)
    assert {f"{e['record']}/v{e['version']}.avsc" for e in entries} == files


def test_every_record_is_found_by_its_id_and_its_name() -> None:
    """From a wire id to the class and back."""
    for cls in RECORD_TYPES:
        frozen = registry.newest(cls.NAME)
        assert registry.find(frozen.schema_id) == frozen
        assert registry.record_class(frozen.record) is cls


def test_an_unknown_id_is_named() -> None:
    """The error names the id and the file that lacks it."""
    with pytest.raises(UnknownSchemaIdError, match=r"schema id 31337 .*registry\.json"):
        registry.find(31337)


def test_freezing_appends_and_changes_nothing_else(tmp_path: Path, changed_class: None) -> None:
    """A changed class gets the next version and a fresh id; what was there stays byte for byte."""
    directory = tmp_path / "avro"
    shutil.copytree(registry.AVRO_DIR, directory)
    before = {p: p.read_bytes() for p in directory.rglob("*.avsc")}
    entries = json.loads((directory / "registry.json").read_text())

    (line,) = registry.freeze_changed(directory)

    after = json.loads((directory / "registry.json").read_text())
    assert after[:-1] == entries
    versions = [e["version"] for e in entries if e["record"] == "task_request"]
    assert after[-1] == {
        "id": max(e["id"] for e in entries) + 1,
        "record": "task_request",
        "version": max(versions) + 1,
    }
    assert line == f"froze task_request v{after[-1]['version']} as schema id {after[-1]['id']}"
    assert {p: p.read_bytes() for p in before} == before
    assert registry.freeze_changed(directory) == []


def test_a_fresh_directory_freezes_everything(tmp_path: Path) -> None:
    """From nothing, every record becomes v1."""
    assert len(registry.freeze_changed(tmp_path)) == len(RECORD_TYPES)
    assert (tmp_path / TaskRequest.NAME / "v1.avsc").exists()
