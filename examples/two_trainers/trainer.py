"""One of several trainers on a fleet: its own filter, its own pace, its own position.

    python examples/two_trainers/trainer.py HOST:PORT --id fast --harness tiny_agent --groups 4
    python examples/two_trainers/trainer.py HOST:PORT --id slow --task herons --seconds-a-step 5 --max-lag 1 --groups 2

Each line says which group was trained. Where a trainer stood is kept in `<state>/<id>.json`; started again, it goes on there.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
from pathlib import Path
from typing import Any

from bus import BusSettings, connect
from schemas.arrays import unpack_mask
from trainer_sink import Group, GroupConsumer


def parse() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap", help="Kafka's address, which `polynya up` prints")
    parser.add_argument("--id", required=True, help="the trainer's name; each has one of its own")
    parser.add_argument("--harness", action="append", help="only groups of this harness (again for more)")
    parser.add_argument("--task", action="append", help="only groups of this task (again for more)")
    parser.add_argument("--groups", type=int, default=4, help="stop after so many")
    parser.add_argument("--groups-a-step", type=int, default=1)
    parser.add_argument("--seconds-a-step", type=float, default=0.0, help="how long a step of this trainer takes")
    parser.add_argument("--max-lag", type=int, default=0, help="groups admitted ahead of it (0: the fleet's own limit)")
    parser.add_argument("--start", default="earliest", help="earliest, latest, or UTC epoch ms")
    parser.add_argument("--state", type=Path, default=Path(".polynya/two_trainers"))
    return parser.parse_args()


async def train(groups: list[Group], seconds: float) -> None:
    """Where the gradient step would be."""
    for group in groups:
        traces = [trace for one in group.scored if one.trajectory for trace in one.trajectory.traces]
        tokens = sum(int(unpack_mask(trace.loss_mask).sum()) for trace in traces)
        print(json.dumps({"task": group.spec.task_id, "group": group.group_id, "tokens": tokens}), flush=True)
    await asyncio.sleep(seconds)


async def save(path: Path, step: int, sink: dict[str, Any]) -> None:
    """Where the weights would be saved, too: before the step is told, whole or not at all."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"step": step, "sink": sink}))
    beside.replace(path)


async def main(options: argparse.Namespace) -> None:
    """Read, train, commit, until enough groups are trained."""
    options.state.mkdir(parents=True, exist_ok=True)
    path = options.state / f"{options.id}.json"
    settings = BusSettings(bootstrap=options.bootstrap, topic_prefix=os.environ.get("POLYNYA_TOPIC_PREFIX", ""))
    async with connect(settings) as bus:
        consumer = GroupConsumer(
            bus,
            options.id,
            task_ids=options.task,
            harness=options.harness,
            start=int(options.start) if options.start.isdigit() else options.start,
            max_lag=options.max_lag,
        )
        saved: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"step": 0}
        if "sink" in saved:
            consumer.load_state_dict(saved["sink"])
        step, done = int(saved["step"]), 0
        async with consumer as groups:
            while done < options.groups:
                batch = [await anext(groups) for _ in range(min(options.groups_a_step, options.groups - done))]
                await train(batch, options.seconds_a_step)
                step, done = step + 1, done + len(batch)
                await groups.commit(step, groups=batch, save=functools.partial(save, path, step))


if __name__ == "__main__":
    asyncio.run(main(parse()))
