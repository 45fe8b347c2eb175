"""What an export says of itself: where each row came from, what it was made with, and how many sessions are not in it, and why."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from schemas import json_text
from schemas.records import ScoredTrajectory
from trainer_sink.errors import SinkError
from trainer_sink.export.span import Span

FORMAT: Final = 1
NAME: Final = "manifest.json"


class ManifestError(SinkError):
    """An export's manifest is missing, damaged, or of an export with other options."""


@dataclass(slots=True)
class Counts:
    """The sums of one run: `records` = sessions + set_aside; `sessions` = exported + refused; `traces` = examples + left_out."""

    records: int = 0
    set_aside: Counter[str] = field(default_factory=Counter)
    """Records that are no session's newest: `unreadable`, `spec_missing`, `duplicates`, `revised`."""
    sessions: int = 0
    exported: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Sessions by the reason for which nothing of them is there."""
    traces: int = 0
    """Traces (of preference pairs: sessions) that were looked at in sessions that were accepted."""
    examples: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    groups: int = 0
    groups_exported: int = 0
    groups_refused: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    """By split."""
    repaired: int = 0
    """Values that no JSON reader takes (lone surrogates, whole numbers beyond 64 bits), replaced."""

    def refused_total(self) -> int:
        """Over all reasons."""
        return sum(self.refused.values())

    def check(self) -> None:
        """Raise AssertionError unless the sums add up: a row that is lost in silence must not go unnoticed."""
        assert self.records == self.sessions + sum(self.set_aside.values()), self
        assert self.sessions == self.exported + self.refused_total(), self
        assert self.traces == self.examples + sum(self.left_out.values()), self
        assert self.groups == self.groups_exported + sum(self.groups_refused.values()), self

    def to_json(self) -> dict[str, Any]:
        """Plain values; reasons in order."""
        plain = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {k: dict(sorted(v.items())) if isinstance(v, Counter) else v for k, v in plain}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Counts:
        """Read `to_json`'s values."""
        fields: dict[str, Any] = {k: Counter(v) if isinstance(v, Mapping) else v for k, v in value.items()}
        return cls(**fields)


@dataclass(slots=True)
class Makers:
    """What made the trajectories of the exported rows, each with its number of sessions."""

    builders: Counter[str] = field(default_factory=Counter)
    """`name {options}`."""
    tokenizers: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    harnesses: Counter[str] = field(default_factory=Counter)

    def add(self, scored: ScoredTrajectory) -> None:
        """Count a session that has rows."""
        trajectory, spec = scored.trajectory, scored.spec
        if trajectory is not None:
            self.builders[f"{trajectory.builder} {json_text.dump(trajectory.builder_options)}"] += 1
        digest = scored.tokenizer_digest or (trajectory.tokenizer_digest if trajectory else "")
        self.tokenizers[digest] += 1
        self.policies[scored.policy_id] += 1
        if spec is not None:
            self.harnesses[" ".join(filter(None, (spec.harness, spec.harness_version)))] += 1

    def to_json(self) -> dict[str, Any]:
        """Plain values, in order."""
        return {f.name: dict(sorted(getattr(self, f.name).items())) for f in dataclasses.fields(self)}


@dataclass(frozen=True, slots=True)
class Run:
    """One reading of the log. `next` is where the following one begins: the end, or before it the oldest open group."""

    span: Span
    next: Mapping[int, int]
    counts: Counts
    makers: Makers

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "source": self.span.to_json(),
            "next": {str(n): self.next[n] for n in sorted(self.next)},
            "counts": self.counts.to_json(),
            "made_by": self.makers.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        """Read `to_json`'s values."""
        return cls(
            Span.from_json(value["source"]),
            {int(n): int(offset) for n, offset in value["next"].items()},
            Counts.from_json(value["counts"]),
            Makers(**{k: Counter(v) for k, v in value["made_by"].items()}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Of a whole export: every run that added to it, and its files. It has no clock time: the same input gives the same bytes."""

    kind: str
    options: Mapping[str, Any]
    runs: tuple[Run, ...]
    files: Mapping[str, Mapping[str, Any]]
    """By name: split, rows, bytes, sha256."""
    polynya: str = field(default_factory=lambda: metadata.version("polynya"))

    def text(self) -> str:
        """The file."""
        value = {
            "format": FORMAT,
            "polynya": self.polynya,
            "kind": self.kind,
            "options": self.options,
            "runs": [run.to_json() for run in self.runs],
            "files": {name: dict(facts) for name, facts in self.files.items()},
        }
        return json.dumps(value, indent=2) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Read one; ManifestError when there is none or it is none."""
    try:
        value = json_text.load(path.read_text())
        if value["format"] != FORMAT:
            raise ManifestError(f"{path} is of format {value['format']}: upgrade, or export to another place")
        return Manifest(
            kind=value["kind"],
            options=value["options"],
            runs=tuple(Run.from_json(run) for run in value["runs"]),
            files=value["files"],
            polynya=value["polynya"],
        )
    except FileNotFoundError as exc:
        raise ManifestError(f"{path} isn't there: what stands beside it is no whole export") from exc
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as exc:
        raise ManifestError(f"{path} is no manifest of an export: {exc!r}") from exc
