"""Polynya's side in slime: its rollout function takes whole groups from the log, its data source keeps the position in checkpoints.

    --rollout-function-path examples.slime_8gpu.polynya_rollout.generate_rollout
    --data-source-path      examples.slime_8gpu.polynya_rollout.PolynyaSource

slime's driver calls generate(n + 1) while it trains n, and save(n) when n is trained. So a rollout counts as trained two calls later, or
when it is saved; what was handed out after that comes again from a restored checkpoint, and no group is trained twice or left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from bus import BusSettings, connect
from trainer_sink import Group, GroupConsumer
from trainer_sink.adapters.slime import samples_of
from trainer_sink.credit import CreditRule
from trainer_sink.sequences import sequences_of

try:
    from slime.rollout.base_types import RolloutFnTrainOutput  # type: ignore[import-not-found]
    from slime.utils.types import Sample  # type: ignore[import-not-found]
except ImportError as missing:
    raise ImportError(
        f"this rollout function runs inside slime, and {missing.name} isn't here: use the image slimerl/slime and put Polynya on its "
        "PYTHONPATH (pip install -e . in it), as examples/slime_8gpu/README.md says"
    ) from missing

T = TypeVar("T")

# Published: trajectories may be this many updates old (async level 2 + weight updates each step).
MAX_POLICY_LAG = 3
GROUP_WITHIN_S = 7200.0


class PolynyaSource:
    """What slime calls its data source: here no prompts, but the position in trajectory.scored, saved with the weights."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self._batches: dict[int, list[Group]] = {}
        self._given = 0
        self._calls = 0
        self._stack = AsyncExitStack()
        self._consumer: GroupConsumer | None = None
        self._saved: dict[str, Any] | None = None
        # slime's threads come and go; the consumer lives in a loop of its own.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="polynya", daemon=True)
        self._thread.start()

    def groups(self, rollout_id: int) -> list[Group]:
        """The groups of a rollout, once they are complete."""
        return self._wait(self._take(rollout_id))

    def first_index(self, groups: list[Group]) -> int:
        """Numbers for the sessions of these groups, never used before in this run."""
        first = self._given
        self._given += sum(group.size for group in groups)
        return first

    def save(self, rollout_id: int) -> None:
        """Everything up to this rollout is trained, and slime saves its weights."""
        self._wait(self._commit(rollout_id))
        assert self._consumer is not None
        path = self._path(self.args.save, rollout_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {"given": self._given, "sink": self._consumer.state_dict()}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(state))
        part.replace(path)

    def load(self, rollout_id: int | None = None) -> None:
        """The weights that this rollout left are loaded."""
        if self.args.load and rollout_id is not None and (path := self._path(self.args.load, rollout_id)).exists():
            self._saved = json.loads(path.read_text())
            self._given = int(self._saved["given"])

    def close(self) -> None:
        """Leave the log; slime itself just ends the process."""
        self._wait(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def get_samples(self, num_samples: int) -> list[Any]:
        """Never asked: the sessions run in Polynya's fleet."""
        raise RuntimeError(f"{num_samples} prompts asked of Polynya's source: use its generate_rollout beside it")

    def add_samples(self, samples: list[Any]) -> None:
        """Never given back: what a trainer skips is run again by the orchestrator."""
        raise RuntimeError(f"{len(samples)} groups given back to Polynya's source: use its generate_rollout beside it")

    def __len__(self) -> int:
        return 0  # with --num-rollout nobody asks

    async def _take(self, rollout_id: int) -> list[Group]:
        consumer = await self._open()
        # slime numbers its pushes from 1: one before the first rollout, then one after each that it trained. It doesn't tell the
        # policy's timeline, so the consumer is told here what is newest.
        consumer.policy_version = str(max(1, self._calls))
        self._calls += 1
        await self._commit(rollout_id - 2)
        async with asyncio.timeout(GROUP_WITHIN_S):
            self._batches[rollout_id] = [await anext(consumer) for _ in range(self.args.rollout_batch_size)]
        return self._batches[rollout_id]

    async def _commit(self, rollout_id: int) -> None:
        for trained in sorted(n for n in self._batches if n <= rollout_id):
            assert self._consumer is not None
            await self._consumer.commit(trained + 1, groups=self._batches[trained])
            del self._batches[trained]

    async def _open(self) -> GroupConsumer:
        if self._consumer is None:
            settings = BusSettings(
                bootstrap=os.environ["POLYNYA_BOOTSTRAP"], topic_prefix=os.environ.get("POLYNYA_TOPIC_PREFIX", "")
            )
            bus = await self._stack.enter_async_context(connect(settings))
            consumer = GroupConsumer(
                bus,
                "slime",
                policy_id=os.environ.get("POLYNYA_POLICY", "default"),
                max_policy_lag=MAX_POLICY_LAG,
                # Two rollouts ahead, as the paper's async level says.
                max_lag=2 * self.args.rollout_batch_size,
            )
            if self._saved is not None:
                consumer.load_state_dict(self._saved["sink"])
            self._consumer = await self._stack.enter_async_context(consumer)
        return self._consumer

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @staticmethod
    def _path(folder: str, rollout_id: int) -> Path:
        return Path(folder) / "rollout" / f"polynya_{rollout_id}.json"


def generate_rollout(args: Any, rollout_id: int, data_source: PolynyaSource, evaluation: bool = False) -> Any:
    """One rollout's groups as samples: prompts, of each its sessions, of each its traces."""
    if evaluation:
        raise RuntimeError("evaluate with `polynya eval` on the same fleet, and leave --eval-interval out")
    groups = data_source.groups(rollout_id)
    rule = CreditRule(advantage="group_norm", weighting="per_session", zero_variance="keep")
    first = data_source.first_index(groups)
    samples, rewards = [], []
    for number, group in enumerate(groups):
        made = samples_of(
            group,
            sequences_of(group, rule),
            group_index=rollout_id * args.rollout_batch_size + number,
            first_index=first,
            reward="advantage",
        )
        first += group.size
        samples.append([[Sample.from_dict(one) for one in session] for session in made])
        rewards += [one.reward for one in group.scored if one.reward is not None]
    sessions = [session for group in samples for session in group]
    metrics = {
        "polynya/reward": sum(rewards) / max(1, len(rewards)),
        "polynya/traces_per_session": sum(map(len, sessions)) / max(1, len(sessions)),
    }
    return RolloutFnTrainOutput(samples=samples, metrics=metrics)
