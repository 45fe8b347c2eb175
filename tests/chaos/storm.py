"""One storm from its beginning to its verdict: a fleet, a load, a killer, a trainer that reads along, and the checks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bus import Bus
from schemas.records import ScoredTrajectory, SessionEvent, SessionEventType
from tests.chaos import ledger
from tests.chaos.checks import SETTLING, Evidence, Verdict, judge
from tests.chaos.fleet import Fleet
from tests.chaos.killer import Killer
from tests.chaos.leftovers import find_leftovers
from tests.chaos.load import Load, draw_load, harnesses_of
from tests.chaos.log import read_log
from tests.chaos.plan import Blow, draw
from tests.chaos.report import Facts, summary
from trainer_sink import GroupConsumer

PROGRESS_S = 10.0
SETTLE_EVERY_S = 5.0
SUBMIT_SHARE = 0.35
"""The load is submitted along this part of the storm, so that registering happens under blows, too."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a storm is to be: `storm_s` of blows at the most, then `calm_s` at the most for what is left to end."""

    seed: int
    sessions: int
    storm_s: float
    calm_s: float
    run_slots: int = 6
    pi_share: float = 0.1
    blows: Sequence[Blow] | None = None
    """Instead of those that the seed draws."""

    @property
    def is_one_machine(self) -> bool:
        """Even seeds: the proxies share a spool directory, as on one machine; odd ones: each has its own."""
        return self.seed % 2 == 0


@dataclass(slots=True)
class Seen:
    """What the driver sees go by, for its progress lines and to know when all is over; nothing is judged by it."""

    registered: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)
    groups: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def take(self, record: object) -> None:
        """Note one record."""
        if isinstance(record, SessionEvent):
            if record.type is SessionEventType.REGISTERED:
                self.registered.add(record.session_id)
            elif record.type is SessionEventType.ENDED:
                self.ended.add(record.session_id)
        elif isinstance(record, ScoredTrajectory):
            self.delivered.add(record.session_id)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a storm was, what came of it, and the summary to print."""

    evidence: Evidence
    verdict: Verdict
    facts: Facts
    summary: str


async def storm(options: Options, root: Path, say: Callable[[str], None] = print) -> Outcome:
    """Run one storm in `root`, which keeps logs, journals, the brokers' data and the summary."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what the driver's own clients meet is no news
    fleet = Fleet(root, say, run_slots=options.run_slots, is_one_machine=options.is_one_machine)
    blows = options.blows
    if blows is None:
        blows = draw(options.seed, options.storm_s, fleet.targets, lease_ttl_s=fleet.lease_ttl_s)
    load = draw_load(options.seed, options.sessions, fleet.journals, pi_share=options.pi_share)
    spools = "one spool directory" if options.is_one_machine else "a spool directory for each proxy"
    say(f"storm: seed {options.seed}, {len(blows)} blows planned, {spools}")
    say(f"storm: {load.sessions} sessions, {harnesses_of(load.requests)}")
    began = time.monotonic()
    seen = Seen()
    async with fleet.running():
        killer = Killer(fleet, blows, root / "blows.jsonl", say)
        await _rage(fleet, killer, load, options, seen)
        await fleet.stop_parts()
        async with fleet.bus() as bus:
            log = await read_log(bus)
    evidence = Evidence(
        log=log,
        ledger=ledger.read(fleet.journals, fleet.engine_ledger),
        expected=load.expected,
        groups=seen.groups,
        leftovers=find_leftovers(root),
        deaths=fleet.own_deaths,
    )
    verdict = judge(evidence)
    facts = Facts(
        seed=options.seed,
        sessions=options.sessions,
        duration_s=time.monotonic() - began,
        root=str(root),
        hits=killer.done,
        left_out=killer.left_out,
        restarts=fleet.restarts,
    )
    (root / "violations.txt").write_text("".join(f"{v}\n" for v in verdict.violations))
    text = summary(facts, evidence, verdict)
    (root / "summary.txt").write_text(text + "\n")
    return Outcome(evidence, verdict, facts, text)


async def _rage(fleet: Fleet, killer: Killer, load: Load, options: Options, seen: Seen) -> None:
    """The storm itself, then the calm in which everything comes to its end."""
    stop = asyncio.Event()
    async with fleet.bus() as bus:
        readers = [
            asyncio.create_task(_watch(bus, seen), name="storm-watch"),
            asyncio.create_task(_train(bus, seen), name="storm-trainer"),
            asyncio.create_task(_progress(fleet, killer, load, seen), name="storm-progress"),
        ]
        killing = asyncio.create_task(killer.run(stop), name="storm-killer")
        submitting = asyncio.create_task(_submit(bus, load, options.storm_s * SUBMIT_SHARE), name="storm-submit")
        try:
            deadline = time.monotonic() + options.storm_s
            while len(seen.delivered) < load.sessions and time.monotonic() < deadline:
                _raise_if_failed(*readers, killing, submitting)
                await asyncio.sleep(0.5)
            stop.set()
            await killing
            await submitting
            await fleet.calm()
            fleet.say(f"calm: {len(seen.ended)} of {load.sessions} sessions have ended")
            await _settle(fleet, bus, load, options.calm_s, seen, *readers)
        finally:
            for task in (*readers, killing, submitting):
                task.cancel()
            await asyncio.gather(*readers, killing, submitting, return_exceptions=True)


async def _settle(fleet: Fleet, bus: Bus, load: Load, calm_s: float, seen: Seen, *readers: asyncio.Task[None]) -> None:
    """Wait until nothing is under way any more, or the time for it is over."""
    deadline = time.monotonic() + calm_s
    while True:
        _raise_if_failed(*readers)
        if len(seen.delivered) >= load.sessions or time.monotonic() > deadline:
            log = await read_log(bus)
            open_ends = judge(Evidence(log=log, ledger=ledger.Ledger(), expected=load.expected), SETTLING).violations
            is_over = not open_ends and {g for g, _ in seen.groups} >= load.expected.keys()
            if is_over or time.monotonic() > deadline:
                return
            fleet.say(f"calm: {len(open_ends)} still open, such as {open_ends[0] if open_ends else 'a group'}")
        await asyncio.sleep(SETTLE_EVERY_S)


async def _watch(bus: Bus, seen: Seen) -> None:
    async for delivery in bus.tail(["rollout.sessions", "trajectory.scored"], start="earliest"):
        if not delivery.is_tombstone:
            seen.take(delivery.decode())


async def _train(bus: Bus, seen: Seen) -> None:
    """A trainer that reads along and commits after each group."""
    async with GroupConsumer(bus, "storm-trainer", policy_id="default") as groups:
        async for group in groups:
            seen.groups.append((group.group_id, tuple(s.session_id for s in group.scored)))
            await groups.commit(len(seen.groups))


async def _submit(bus: Bus, load: Load, within_s: float) -> None:
    pause_s = within_s / max(1, len(load.requests))
    for request in load.requests:
        await bus.publish(request)
        await asyncio.sleep(pause_s)


async def _progress(fleet: Fleet, killer: Killer, load: Load, seen: Seen) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_S)
        hits = sum(killer.done.values())
        fleet.say(
            f"{time.monotonic() - began:4.0f} s: {len(seen.registered)} of {load.sessions} registered, {len(seen.ended)} ended, "
            f"{len(seen.delivered)} delivered, {len(seen.groups)} groups trained; {hits} hits, {fleet.restarts} restarts"
        )


def _raise_if_failed(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        if task.done():
            with contextlib.suppress(asyncio.CancelledError):
                task.result()
