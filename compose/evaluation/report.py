"""What an evaluation found: from results to a report, and from a report to its file and back."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from compose.errors import usage
from compose.evaluation.statistics import Share, Task, share_of_tasks, wilson
from schemas.records import ScoredTrajectory

FORMAT: Final = 1
"""Of the file."""

NO_REPOSITORY: Final = "(none)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One session: what it tried, and what became of it. `reward` is None where nobody could grade it."""

    task: str
    harness: str
    repository: str
    index: int
    session_id: str
    status: str
    boundary: str
    reward: float | None
    versions: dict[str, int] = field(default_factory=dict)
    """Of the weights, with the tokens that each sampled."""
    error: str = ""

    @classmethod
    def of(cls, scored: ScoredTrajectory, *, task: str) -> Attempt:
        """From a session's result; `task` is its name in the task file."""
        spec, versions = scored.spec, Counter[str]()
        for trace in scored.trajectory.traces if scored.trajectory else []:
            for turn in trace.turns:
                for span in turn.version_spans if turn.is_trained else ():
                    versions[span.version] += span.end - span.start
        metadata = spec.metadata if spec and isinstance(spec.metadata, Mapping) else {}
        return cls(
            task=task,
            harness=spec.harness if spec else "",
            repository=str(metadata.get("repo") or NO_REPOSITORY),
            index=spec.index if spec else 0,
            session_id=scored.session_id,
            status=str(scored.status),
            boundary=str(scored.boundary),
            reward=scored.reward,
            versions=dict(versions),
            error=scored.error[:300],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """An evaluation: what was fixed, and every attempt."""

    eval_id: str
    task_file: str
    policy_id: str
    version: str
    """The weights' version that was to be evaluated; empty: unknown."""
    accept: float
    samples: int
    started_at: int
    ended_at: int
    missing: int = 0
    """Sessions that hadn't ended when the wait was over."""
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def versions(self) -> dict[str, int]:
        """Every version that sampled, with its tokens, the most frequent first."""
        total = Counter[str]()
        for attempt in self.attempts:
            total.update(attempt.versions)
        return dict(total.most_common())

    @property
    def strangers(self) -> list[str]:
        """Versions that sampled and aren't the one to be evaluated: with them the numbers are no one version's."""
        seen = list(self.versions)
        fixed = self.version or (seen[0] if seen else "")
        return [version for version in seen if version != fixed]

    @property
    def harnesses(self) -> list[str]:
        """The harnesses, in order of their names."""
        return sorted({attempt.harness for attempt in self.attempts})

    def of(self, harness: str) -> list[Attempt]:
        """One harness' attempts."""
        return [attempt for attempt in self.attempts if attempt.harness == harness]

    def is_accepted(self, attempt: Attempt) -> bool:
        """Whether a session's reward reaches the bar."""
        return attempt.reward is not None and attempt.reward >= self.accept

    def tasks(self, attempts: Iterable[Attempt]) -> dict[str, Task]:
        """Accepted and attempted of each task, by name."""
        counted: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for attempt in attempts:
            counted[attempt.task][0] += self.is_accepted(attempt)
            counted[attempt.task][1] += 1
        return {task: (accepted, attempted) for task, (accepted, attempted) in sorted(counted.items())}

    def ks(self, attempts: Sequence[Attempt]) -> list[int]:
        """The k of pass@k that the number of samples allows: 1, and the largest."""
        largest = max((attempted for _, attempted in self.tasks(attempts).values()), default=1)
        return [1] if largest <= 1 else [1, largest]

    def pass_at(self, k: int, attempts: Sequence[Attempt]) -> Share:
        """pass@k of some attempts."""
        return share_of_tasks(k, list(self.tasks(attempts).values()))

    def repositories(self, attempts: Iterable[Attempt]) -> dict[str, tuple[int, int, Share]]:
        """Accepted, attempted and the share, by repository."""
        counted: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for attempt in attempts:
            counted[attempt.repository][0] += self.is_accepted(attempt)
            counted[attempt.repository][1] += 1
        return {name: (a, n, wilson(a, n)) for name, (a, n) in sorted(counted.items())}

    def summary(self) -> dict[str, Any]:
        """The numbers as JSON, by harness, with the names of the methods."""
        return {
            harness: {
                "attempted": len(own := self.of(harness)),
                "accepted": sum(map(self.is_accepted, own)),
                "ungraded": sum(attempt.reward is None for attempt in own),
                "tasks": len(self.tasks(own)),
                "interval": interval_name(own_samples := max((n for _, n in self.tasks(own).values()), default=1)),
                "pass_at": {str(k): _plain(self.pass_at(k, own)) for k in self.ks(own)},
                "repositories": {
                    name: {"accepted": a, "attempted": n, **_plain(share)}
                    for name, (a, n, share) in self.repositories(own).items()
                },
                "samples": own_samples,
            }
            for harness in self.harnesses
        }

    def to_json(self) -> dict[str, Any]:
        """The report's file."""
        return {
            "format": FORMAT,
            **asdict(self),
            "versions": self.versions,
            "strangers": self.strangers,
            "summary": self.summary(),
        }

    @classmethod
    def read(cls, path: Path) -> Report:
        """A report from its file; a usage error when it is none."""
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain.pop("format") != FORMAT:
                raise usage(f"{path} is an evaluation of another release")
            fields = {name: plain[name] for name in cls.__dataclass_fields__}
            fields["attempts"] = [Attempt(**attempt) for attempt in fields["attempts"]]
            return cls(**fields)
        except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as exc:
            raise usage(f"{path} is no evaluation: {exc!r}", hint="polynya eval TASKS --policy P --out FILE") from exc


def interval_name(samples: int) -> str:
    """Which interval stands beside pass@k."""
    return "95 % Wilson" if samples <= 1 else "95 % bootstrap over tasks"


def _plain(share: Share) -> dict[str, float | None]:
    values = {"value": share.value, "low": share.low, "high": share.high}
    return {name: None if math.isnan(value) else value for name, value in values.items()}
