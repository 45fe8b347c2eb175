"""A trainer in forty lines: read whole groups, take a step for each, save where we stand, commit.

    python examples/read_groups.py HOST:PORT [steps]    # Kafka's address, which `polynya up` prints

Run it twice: the second run goes on after the last step, because the position is saved where the weights would be, before the step is told.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from bus import BusSettings, connect
from schemas.arrays import unpack_mask
from trainer_sink import GroupConsumer

STATE = Path("sink-state.json")


async def main(bootstrap: str, steps: int) -> None:
    """Train on the next `steps` groups."""
    settings = BusSettings(bootstrap=bootstrap, topic_prefix=os.environ.get("POLYNYA_TOPIC_PREFIX", ""))
    async with connect(settings) as bus:
        consumer = GroupConsumer(bus, "example-trainer", policy_id="default")
        if STATE.exists():
            consumer.load_state_dict(json.loads(STATE.read_text()))

        async def save(position: dict[str, Any]) -> None:  # here: the weights, too, in the same rename
            partial = STATE.with_suffix(".partial")
            partial.write_text(json.dumps(position))
            partial.replace(STATE)

        async with consumer as groups:
            for _ in range(steps):
                group = await anext(groups)
                rewards = [s.reward or 0.0 for s in group.scored]
                mean = sum(rewards) / len(rewards)
                for scored, reward in zip(group.scored, rewards, strict=True):
                    traces = scored.trajectory.traces if scored.trajectory else []
                    tokens = sum(int(unpack_mask(t.loss_mask).sum()) for t in traces)
                    print(
                        f"{group.group_id} #{scored.spec.index if scored.spec else 0} {scored.status}: "
                        f"advantage {reward - mean:+.3f} on {tokens} tokens"
                    )  # here: the gradient step
                await groups.commit(groups.last_step + 1, save=save)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: read_groups.py HOST:PORT [steps]; `polynya up` prints Kafka's address")
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1))
