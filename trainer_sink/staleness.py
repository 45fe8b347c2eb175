"""How old trained tokens are: pure, from version spans and the order in which a policy's versions were published.

Versions are texts, as engines name them. The lag of a version behind the current one is, by the first rule that applies:

1. 0 when nothing was ever published, or when the two are the same text;
2. unversioned (None) when the engine didn't say which weights it used;
3. the number of publications between the two, when both stand on the timeline;
4. the difference of the two numbers, when both are whole numbers (0 for one that is ahead);
5. otherwise the version is older than everything on the timeline (an engine's name for its first weights, such as `default`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from schemas.records import ScoredTrajectory, Trace

UNVERSIONED = -1
"""Stands for the lag of tokens whose engine named no version."""


def number_of(version: str) -> int | None:
    """The version as a number; None for a text that is none, or is too long for 64 bits (nobody counts that far)."""
    return int(version) if version.isdecimal() and len(version) <= 18 else None


@dataclass(frozen=True, slots=True)
class Staleness:
    """How many trained tokens lag how far behind `current`."""

    tokens_by_lag: Mapping[int, int] = field(default_factory=dict)
    current: str = ""

    @property
    def unversioned(self) -> int:
        """Trained tokens whose engine named no version."""
        return self.tokens_by_lag.get(UNVERSIONED, 0)

    @property
    def max(self) -> float:
        """The largest lag of a token; 0.0 without any."""
        return float(max((lag for lag in self.tokens_by_lag if lag >= 0), default=0))

    @property
    def mean(self) -> float:
        """The mean lag over trained tokens that have a version; 0.0 without any."""
        known = {lag: n for lag, n in self.tokens_by_lag.items() if lag >= 0}
        tokens = sum(known.values())
        return sum(lag * n for lag, n in known.items()) / tokens if tokens else 0.0

    @classmethod
    def of_all(cls, several: Iterable[Staleness]) -> Staleness:
        """Together, by tokens."""
        total: Counter[int] = Counter()
        current = ""
        for one in several:
            total.update(one.tokens_by_lag)
            current = one.current or current
        return cls(dict(total), current)


class VersionOrder:
    """The versions of one policy in the order of their publication."""

    def __init__(self, published: Iterable[str] = ()) -> None:
        self._places: dict[str, int] = {}
        for version in published:
            self.add(version)

    def add(self, version: str) -> None:
        """The next one; a repeated one keeps its place."""
        if version:
            self._places.setdefault(version, len(self._places))

    @property
    def newest(self) -> str:
        """The last one; '' when nothing was published."""
        return next(reversed(self._places), "")

    def lag(self, version: str, current: str) -> int | None:
        """By how many publications a version is behind the current one; None when it is no version. See the module."""
        if not current or version == current:
            return 0
        if not version:
            return None
        # A trainer may name its newest weights before the timeline does.
        now = self._places.get(current, len(self._places))
        place = self._places.get(version)
        if place is not None and current in self._places:
            return max(0, now - place)
        then, today = number_of(version), number_of(current)
        if then is not None and today is not None:
            return max(0, today - then)
        return max(0, now - place) if place is not None else now + 1


def staleness_of(scored: Iterable[ScoredTrajectory], order: VersionOrder, current: str) -> Staleness:
    """The lags of all trained tokens of some sessions (loss mask 1) behind `current` ('': the order's newest)."""
    current = current or order.newest
    tokens: Counter[int] = Counter()
    lags: dict[str, int] = {}
    for one in scored:
        for trace in one.trajectory.traces if one.trajectory is not None else ():
            for version, n in _tokens_by_version(trace).items():
                if version not in lags:
                    lag = order.lag(version, current)
                    lags[version] = UNVERSIONED if lag is None else lag
                tokens[lags[version]] += n
    return Staleness(dict(tokens), current)


def _tokens_by_version(trace: Trace) -> Counter[str]:
    """Trained tokens by the version that sampled them; what no span covers counts under ''."""
    count = trace.loss_mask.count
    tokens: Counter[str] = Counter()
    left = count(1)
    for turn in trace.turns:
        if not turn.is_trained:
            continue
        begin, end = turn.start, turn.end
        for span in turn.version_spans:  # offsets count within the reply
            to = begin + span.end
            n = count(1, begin + span.start, min(end, to))
            if n:
                tokens[span.version] += n
                left -= n
    if left > 0:
        tokens[""] += left
    return tokens
