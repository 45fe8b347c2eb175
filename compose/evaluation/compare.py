"""Two evaluations side by side: over the tasks that both have, by harness."""

from __future__ import annotations

from dataclasses import dataclass

from compose.evaluation.report import Report
from compose.evaluation.statistics import Share, difference, share_of_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One number of both, and the second minus the first."""

    harness: str
    k: int
    tasks: int
    """That both have."""
    first: Share
    second: Share
    gain: Share

    @property
    def is_clear(self) -> bool:
        """Whether the interval of the difference leaves out 0."""
        return self.gain.low > 0 or self.gain.high < 0


def compare(first: Report, second: Report) -> list[Line]:
    """The lines for each harness that both ran; where they have one each, for these two."""
    pairs = [(name, name) for name in first.harnesses if name in second.harnesses]
    if not pairs and len(first.harnesses) == len(second.harnesses) == 1:
        pairs = [(first.harnesses[0], second.harnesses[0])]
    lines: list[Line] = []
    for one, other in pairs:
        left, right = first.tasks(first.of(one)), second.tasks(second.of(other))
        common = sorted(set(left) & set(right))
        if not common:
            continue
        a, b = [left[name] for name in common], [right[name] for name in common]
        ks = sorted(set(first.ks(first.of(one))) & set(second.ks(second.of(other))))
        lines += [
            Line(
                harness=one if one == other else f"{one} → {other}",
                k=k,
                tasks=len(common),
                first=share_of_tasks(k, a),
                second=share_of_tasks(k, b),
                gain=difference(k, a, b),
            )
            for k in ks
        ]
    return lines
