"""What a storm does, drawn from a seed: which process is hit when, how, and how long it stays away. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PAUSE_S: Final = (5.0, 15.0)
"""Between two blows."""

BACK_AFTER_S: Final = (0.3, 5.0)
"""A killed process is started again after that long."""

BROKER_BACK_AFTER_S: Final = (3.0, 10.0)
"""A killed broker stays away for longer: its partitions get other leaders meanwhile."""

BROKERS_APART_S: Final = 40.0
"""From a broker's return to the next broker's death: time to come back into sync, since two in three must be."""

FREEZE_SHARE: Final = 0.35
"""Of the blows against parts that can be frozen."""


class How(StrEnum):
    """How a process is hit."""

    KILL = "kill"
    FREEZE = "freeze"


class Kind(StrEnum):
    """What a process is."""

    WORKER = "worker"
    PROXY = "proxy"
    ORCHESTRATOR = "orchestrator"
    ASSEMBLER = "assembler"
    JOINER = "joiner"
    BROKER = "broker"
    ENGINE = "engine"


WEIGHTS: Final[dict[Kind, float]] = {
    Kind.WORKER: 4.0,
    Kind.PROXY: 4.0,
    Kind.ORCHESTRATOR: 2.0,
    Kind.ASSEMBLER: 2.0,
    Kind.JOINER: 1.5,
    Kind.BROKER: 3.0,
    # Its start costs ten seconds of a core, in which nobody gets an answer.
    Kind.ENGINE: 0.4,
}
"""How often each kind is hit, all its processes together."""

FREEZABLE: Final = frozenset({Kind.WORKER, Kind.PROXY})


@dataclass(frozen=True, slots=True)
class Target:
    """One process of the fleet."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Blow:
    """One hit: `at_s` after the storm's beginning; `back_after_s` later the process is started again, or thawed."""

    at_s: float
    target: Target
    how: How
    back_after_s: float

    def __str__(self) -> str:
        """As it stands in the storm's log."""
        word = "restarted" if self.how is How.KILL else "thawed"
        return f"{self.at_s:.1f} s: {self.how} {self.target.name}, {word} after {self.back_after_s:.1f} s"


def fleet_of(*, workers: int = 2, proxies: int = 2, brokers: int = 3) -> tuple[Target, ...]:
    """The processes of a fleet, in a fixed order."""
    return (
        *(Target(f"worker-{n}", Kind.WORKER) for n in range(1, workers + 1)),
        *(Target(f"proxy-{n}", Kind.PROXY) for n in range(1, proxies + 1)),
        Target("orchestrator", Kind.ORCHESTRATOR),
        Target("assembler", Kind.ASSEMBLER),
        Target("joiner", Kind.JOINER),
        *(Target(f"broker-{n}", Kind.BROKER) for n in range(1, brokers + 1)),
        Target("engine", Kind.ENGINE),
    )


def draw(seed: int, duration_s: float, targets: Sequence[Target], *, lease_ttl_s: float) -> tuple[Blow, ...]:
    """The blows of one storm; the same arguments give the same blows.

    A process that is away isn't hit, and of the brokers one at a time is: with two of three gone nothing could be acknowledged.
    A frozen process stays so past its lease.
    """
    dice = random.Random(seed)
    blows: list[Blow] = []
    away_until: dict[str, float] = {}
    at_s = dice.uniform(*PAUSE_S)
    while at_s < duration_s:
        standing = [t for t in targets if away_until.get(_slot(t), 0.0) <= at_s]
        if standing:
            target = _choose(dice, standing, targets)
            blow = Blow(at_s, target, *_drawn(dice, target, lease_ttl_s))
            apart_s = BROKERS_APART_S if target.kind is Kind.BROKER else 0.0
            away_until[_slot(target)] = at_s + blow.back_after_s + apart_s
            blows.append(blow)
        at_s += dice.uniform(*PAUSE_S)
    return tuple(blows)


def kinds_hit(blows: Iterable[Blow]) -> frozenset[Kind]:
    """Which kinds of processes a plan hits at all."""
    return frozenset(blow.target.kind for blow in blows)


def _slot(target: Target) -> str:
    """All brokers share one place in which one may be missing."""
    return str(target.kind) if target.kind is Kind.BROKER else target.name


def _choose(dice: random.Random, standing: Sequence[Target], targets: Sequence[Target]) -> Target:
    sizes = {kind: sum(t.kind is kind for t in targets) for kind in Kind}
    return dice.choices(standing, [WEIGHTS[t.kind] / sizes[t.kind] for t in standing])[0]


def _drawn(dice: random.Random, target: Target, lease_ttl_s: float) -> tuple[How, float]:
    if target.kind in FREEZABLE and dice.random() < FREEZE_SHARE:
        return How.FREEZE, dice.uniform(1.3, 2.5) * lease_ttl_s
    return How.KILL, dice.uniform(*(BROKER_BACK_AFTER_S if target.kind is Kind.BROKER else BACK_AFTER_S))
