"""Where an export goes: built whole beside its place, then moved there. What is interrupted leaves the old one, or nothing.

A directory holds `data/<split>-00000-of-00001.<format>`, `README.md` and `manifest.json`. A single file of JSON lines has its
manifest beside it (`FILE.manifest.json`), and a further split as `NAME.<split>.jsonl`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from trainer_sink.errors import SinkError
from trainer_sink.export.durable import sync
from trainer_sink.export.manifest import NAME, Manifest, ManifestError, read_manifest
from trainer_sink.export.shards import Shard

LINES: Final = ".jsonl"
TRAIN: Final = "train"
_OLD: Final = "old"

Existing = Literal["refuse", "append", "replace"]


class ExportPlaceError(SinkError):
    """The place of an export is taken, or is none."""


class Place:
    """The directory, or the file, of one export."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.is_file = target.suffix == LINES
        self._parent = target.absolute().parent

    @property
    def manifest_path(self) -> Path:
        """Where its manifest stands."""
        return self.target.with_name(f"{self.target.name}.{NAME}") if self.is_file else self.target / NAME

    def existing(self, wish: Existing) -> Manifest | None:
        """The export that stands there and is to be added to; None for a new one. What runs that died have left is cleared away.

        Raises ExportPlaceError when something stands there that isn't to be touched, ManifestError when it isn't whole.
        """
        self.clear()
        if not self.target.exists() and not self._has_other_splits():
            return None
        if not self.is_file and self.target.is_dir() and not any(self.target.iterdir()):
            return None
        if wish == "replace" and (self.is_file or self.manifest_path.exists()):
            return None
        if not self.manifest_path.exists():
            how = "--replace overwrites it" if self.is_file else "choose another place"
            raise ExportPlaceError(f"{self.target} is there already and is no whole export of ours: {how}")
        manifest = read_manifest(self.manifest_path)
        if wish == "refuse":
            raise ExportPlaceError(
                f"{self.target} holds an export: --append adds what came since, --replace makes it anew"
            )
        for name, facts in manifest.files.items():
            path = self.path_of(name)
            if not path.exists() or path.stat().st_size != facts["bytes"]:
                raise ManifestError(f"{path} isn't what its manifest says: make the export anew with --replace")
        return manifest

    def _has_other_splits(self) -> bool:
        """Whether a file's export stands there though the file doesn't: all of its tasks are in another split."""
        if not self.is_file or not self.manifest_path.exists():
            return False
        return any(self.path_of(name).exists() for name in read_manifest(self.manifest_path).files)

    def path_of(self, name: str) -> Path:
        """A file that the manifest names."""
        return self.target.with_name(name) if self.is_file else self.target / name

    def clear(self) -> None:
        """Take away what runs that died have left; the export that one of them was about to replace comes back."""
        for left in self._parent.glob(f".{self.target.name}.*.part"):
            if not _is_running(left.name.rsplit(".", 2)[-2]):
                if (left / _OLD).exists() and not self.target.exists():
                    (left / _OLD).rename(self.target)  # it died between the two renames of `commit`
                shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def building(self) -> Iterator[Path]:
        """A fresh directory beside the place, gone afterwards."""
        self._parent.mkdir(parents=True, exist_ok=True)
        part = self._parent / f".{self.target.name}.{os.getpid()}.part"
        part.mkdir()
        try:
            yield part
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def name(self, shards: list[Shard]) -> list[tuple[str, Shard]]:
        """The final name of each shard. A file takes one shard of each split."""
        totals = {split: sum(s.split == split for s in shards) for split in {s.split for s in shards}}
        numbers = dict.fromkeys(totals, 0)
        named: list[tuple[str, Shard]] = []
        for shard in shards:
            number = numbers[shard.split]
            numbers[shard.split] += 1
            if self.is_file:
                stem = self.target.name.removesuffix(LINES)
                name = self.target.name if shard.split == TRAIN else f"{stem}.{shard.split}{LINES}"
            else:
                name = f"data/{shard.split}-{number:05d}-of-{totals[shard.split]:05d}{shard.path.suffix}"
            named.append((name, shard))
        return named

    def commit(self, part: Path, files: dict[str, Path], texts: dict[str, str]) -> None:
        """Move the files of `part` into place; `texts` are small files, the manifest among them as the last."""
        whole = part / "whole"
        (whole / "data").mkdir(parents=True)
        for name, path in files.items():
            path.replace(whole / name)
        for name, text in texts.items():
            (whole / name).write_text(text, encoding="utf-8")
            sync(whole / name)
        if self.is_file:
            # Without its manifest an export isn't whole, so that goes first and comes last.
            before = set(read_manifest(self.manifest_path).files) if self.manifest_path.exists() else set()
            self.manifest_path.unlink(missing_ok=True)
            for name in before - set(files):
                self.target.with_name(name).unlink(missing_ok=True)
            for name in (*files, *texts):
                (whole / name).replace(self.target.with_name(name))
            return
        if not self.target.exists():
            whole.replace(self.target)
            return
        self.target.rename(part / _OLD)
        whole.rename(self.target)


def _is_running(pid: str) -> bool:
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def link(path: Path, there: Path) -> Path:
    """The same file at another place: linked where the file system can, so that nothing is written twice."""
    try:
        os.link(path, there)
    except OSError:
        shutil.copyfile(path, there)
    return there
