"""The demo's family of tasks: "Write the word W to F.", graded by what F holds afterwards. Pure.

Eight words and four files make 32 combinations; eight of them are never trained on, two to a file and one to a word, so that
a policy which only remembers combinations can't raise their reward.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from schemas.task import Budgets, EvaluatorSpec, HarnessSpec, Sampling, TaskSpec

WORDS: Final = ("amber", "basil", "cedar", "delta", "ember", "fjord", "grape", "heron")
FILES: Final = ("answer.txt", "notes.txt", "result.txt", "output.txt")

RIGHT: Final = 1.0
OTHER_CONTENT: Final = 0.2
"""The reward where the right file is there with the wrong content: half of the task is done."""

SYSTEM_PROMPT: Final = "You are a coding agent."
MAX_TOKENS: Final = 48
"""Per reply. A sound one has a dozen; what runs on is cut here."""

# What a session doesn't need costs start-up time and prompt tokens. Without `bash` a random policy can't do much harm.
PI_ARGUMENTS: Final = (
    "--no-session",
    "--no-extensions",
    "--no-skills",
    "--no-prompt-templates",
    "--no-themes",
    "--no-context-files",
    "--no-mcp",
    "--no-approve",
    "--tools",
    "write,read",
    "--system-prompt",
    SYSTEM_PROMPT,
)
PI_OPTIONS: Final[dict[str, Any]] = {"max_tokens": MAX_TOKENS, "extra_args": list(PI_ARGUMENTS)}

GRADER: Final = "compose.demo.grader:WrittenWord"


@dataclass(frozen=True, slots=True, order=True)
class Combination:
    """One word to be written to one file."""

    word: str
    file: str

    @property
    def instruction(self) -> str:
        """What the agent is asked for: the only place where word and file stand."""
        return f"Write the word {self.word} to {self.file}."


ALL: Final = tuple(Combination(word, file) for word in WORDS for file in FILES)
HELD_OUT: Final = tuple(Combination(word, FILES[(3 * n + 1) % len(FILES)]) for n, word in enumerate(WORDS))
TRAINED: Final = tuple(combination for combination in ALL if combination not in HELD_OUT)


def reward(wanted: str, found: str | None) -> float:
    """The reward of a session by what its file holds; None: there is no such file."""
    if found is None:
        return 0.0
    return RIGHT if found.strip() == wanted else OTHER_CONTENT


def draws(seed: int) -> Iterator[Combination]:
    """Trained combinations for ever: all of them in a random order, then all of them in another."""
    rng = random.Random(seed)  # noqa: S311 - a repeatable order, no secret
    while True:
        bag = list(TRAINED)
        rng.shuffle(bag)
        yield from bag


def task_of(
    combination: Combination,
    *,
    task_id: str,
    samples: int,
    seed: int,
    policy_id: str,
    for_trainer: str = "",
    priority: int = 0,
) -> TaskSpec:
    """A task that rolls a combination out `samples` times through the real Pi."""
    return TaskSpec(
        task_id=task_id,
        instruction=combination.instruction,
        harness=HarnessSpec(name="pi", options=PI_OPTIONS),
        evaluator=EvaluatorSpec(name=GRADER, options={"word": combination.word, "file": combination.file}),
        num_samples=samples,
        sampling=Sampling(temperature=1.0, seed=seed),
        budgets=Budgets(init_s=120, run_s=60, postrun_s=60, evaluate_s=30),
        max_attempts=2,
        priority=priority,
        policy_id=policy_id,
        for_trainer=for_trainer,
        metadata={"demo": "held out" if combination in HELD_OUT else "trained"},
    )
