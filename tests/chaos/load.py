"""The sessions of a storm: groups of a fast shell agent and of the real Pi, drawn from the seed. Pure."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from compose.cli.task_file import request_of
from schemas import ids
from schemas.records import TaskRequest
from schemas.task import TaskSpec

AGENT = Path(__file__).parents[1] / "e2e" / "agent.py"
GROUP_SIZE = 4
PI_SHARE = 0.1
MAX_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Load:
    """What is submitted, in order, and which sessions each group must have."""

    requests: tuple[TaskRequest, ...]

    @property
    def expected(self) -> dict[str, tuple[str, ...]]:
        """Each group's sessions."""
        return {
            (group := ids.group_id(r.task_id)): tuple(ids.session_id(group, i) for i in range(r.num_samples))
            for r in self.requests
        }

    @property
    def sessions(self) -> int:
        """How many sessions there are."""
        return sum(r.num_samples for r in self.requests)


def draw_load(seed: int, sessions: int, journals: Path, *, pi_share: float = PI_SHARE) -> Load:
    """`sessions` sessions in groups of four (the last one smaller); about `pi_share` of the groups, at least one, are Pi's."""
    dice = random.Random(f"load-{seed}")
    sizes = [GROUP_SIZE] * (sessions // GROUP_SIZE) + ([sessions % GROUP_SIZE] if sessions % GROUP_SIZE else [])
    of_pi = set(dice.sample(range(len(sizes)), max(1, round(pi_share * len(sizes))))) if pi_share else set()
    return Load(
        tuple(
            _request(f"storm-{seed}-{number}", size, _pi(dice) if number in of_pi else _shell(dice, journals))
            for number, size in enumerate(sizes)
        )
    )


def _request(task_id: str, size: int, fields: dict[str, object]) -> TaskRequest:
    budgets = {"queue_s": 7200, "init_s": 120, "run_s": 240, "postrun_s": 60, "evaluate_s": 60}
    whole = {"task_id": task_id, "num_samples": size, "max_attempts": MAX_ATTEMPTS, "budgets": budgets, **fields}
    return request_of(TaskSpec.model_validate(whole))


def _shell(dice: random.Random, journals: Path) -> dict[str, object]:
    command = f"{sys.executable} -S -E {AGENT} {{base_url_openai_chat}} {{secret}} {journals}/$$ {{instruction}}"
    instruction = f"turns={dice.randint(4, 10)} delay_ms={dice.randint(15, 45)} tries=14"
    return {"instruction": instruction, "harness": {"name": "shell", "options": {"command": command}}}


def _pi(dice: random.Random) -> dict[str, object]:
    return {
        "instruction": f"turns={dice.randint(2, 4)} delay_ms={dice.randint(5, 20)} tool=bash",
        "harness": {"name": "pi"},
    }


def harnesses_of(requests: Sequence[TaskRequest]) -> dict[str, int]:
    """How many sessions each harness has."""
    found: dict[str, int] = {}
    for request in requests:
        found[request.harness] = found.get(request.harness, 0) + request.num_samples
    return found
