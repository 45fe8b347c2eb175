"""A trainer that can be killed: its weights are the ids of the groups that it trained, saved with the sink's position in one file.

Runs in a process of its own (`life`); says at each phase of a step where it is, so that a test can kill it there.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bus import BusSettings, connect
from trainer_sink import Group, GroupConsumer

GROUPS_PER_STEP = 2


@dataclass(frozen=True, slots=True)
class Recipe:
    """How it trains; `saves_in_commit` puts the saving before the publication instead of behind it."""

    settings: str
    trainer_id: str
    checkpoint: Path
    saves_in_commit: bool
    wishes: dict[str, Any]


def load(path: Path) -> dict[str, Any]:
    """The newest checkpoint, or an untrained model's."""
    return json.loads(path.read_text()) if path.exists() else {"trained": [], "sink": None}


def _save(path: Path, trained: list[str], sink: dict[str, Any]) -> None:
    """Weights and position together, or neither."""
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        json.dump({"trained": trained, "sink": sink}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def life(recipe: Recipe, phases: Connection) -> None:
    """Train from the checkpoint to the end of the log; the process' entry."""
    asyncio.run(_train(recipe, phases))


def _enter(phases: Connection, name: str) -> None:
    """Go on when told to: the test decides how far a life comes, however slow it is itself."""
    phases.send(name)
    phases.recv()


async def _train(recipe: Recipe, phases: Connection) -> None:
    state = load(recipe.checkpoint)
    trained: list[str] = state["trained"]
    async with connect(BusSettings.model_validate_json(recipe.settings)) as bus:
        consumer = GroupConsumer(bus, recipe.trainer_id, until_end=True, **recipe.wishes)
        if state["sink"] is not None:
            consumer.load_state_dict(state["sink"])
        async with consumer:
            batch: list[Group] = []
            async for group in consumer:
                batch.append(group)
                if len(batch) == GROUPS_PER_STEP:
                    await _step(recipe, consumer, trained, batch, phases)
                    batch = []
            await _step(recipe, consumer, trained, batch, phases)


async def _step(
    recipe: Recipe, consumer: GroupConsumer, trained: list[str], batch: list[Group], phases: Connection
) -> None:
    _enter(phases, "taken")
    trained += [group.group_id for group in batch]

    async def save(sink: dict[str, Any]) -> None:
        _enter(phases, "saving")
        _save(recipe.checkpoint, trained, sink)
        _enter(phases, "saved")

    step = consumer.last_step + 1
    if recipe.saves_in_commit:
        await consumer.commit(step, groups=batch, save=save)
    else:
        await consumer.commit(step, groups=batch)
        await save(consumer.state_dict())
    _enter(phases, "done")
