"""A trainer in thirty lines: read whole groups, take a step for each, commit, save where we stand.

    python examples/read_groups.py HOST:PORT [steps]    # Kafka's address, which `polynya up` prints

Run it twice: the second run goes on after the last commit, because the position is saved beside the "weights".
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from bus import BusSettings, connect
from schemas.arrays import unpack_mask
from trainer_sink import GroupConsumer

STATE = Path("sink-state.json")


async def main(bootstrap: str, steps: int) -> None:
    """Train on the next `steps` groups."""
    settings = BusSettings(bootstrap=bootstrap, topic_prefix=os.environ.get("POLYNYA_TOPIC_PREFIX", ""))
    async with connect(settings) as bus:
        consumer = GroupConsumer(bus, "example-trainer", policy_id="default")
        state = json.loads(STATE.read_text()) if STATE.exists() else None
        if state:
            consumer.load_state_dict(state["sink"])
        done = state["step"] if state else 0
        async with consumer as groups:
            for step in range(done + 1, done + 1 + steps):
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
                await groups.commit(step)
                STATE.write_text(json.dumps({"step": step, "sink": groups.state_dict()}))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: read_groups.py HOST:PORT [steps]; `polynya up` prints Kafka's address")
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1))
