"""The supervised start: first what the task is, then the noise that leaves reinforcement something to do."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import torch

from compose.demo.family import HELD_OUT, MAX_TOKENS, TRAINED, Combination
from compose.demo.warm_start.demonstrations import CALL_CLOSE, CALL_OPEN, demonstrate, directories
from compose.demo.warm_start.network import new_network, sample, sampled_logprobs, write_network
from compose.demo.warm_start.tokens import END_OF_TEXT, Ids, write_tokenizer
from compose.demo.warm_start.wire import Wire

WARM_UP_STEPS: Final = 50
LOOK_EVERY: Final = 50
BETAS: Final = (0.9, 0.98)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A part of the course. With `until`, it ends when sampled success reaches that; else the learning rate falls to a twentieth."""

    name: str
    steps: int
    right: float
    """Share of right demonstrations."""
    until: float | None = None
    is_whole: bool = True
    """Whole sessions: tools in the prompt, and the farewell. Without them a lesson costs a fifth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the start is taught: to look word and file up, to find them behind a long prompt, and last to be unsure of them."""

    seed: int = 0
    batch: int = 32
    learning_rate: float = 5e-3
    lessons: tuple[Lesson, ...] = (
        Lesson(name="looking up", steps=4000, right=0.9, until=0.7, is_whole=False),
        Lesson(name="whole sessions", steps=1500, right=0.8, until=0.6),
        Lesson(name="noise", steps=300, right=0.36),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """What came of it: sampled success over fresh directories (1 is a right call) and the cost."""

    trained: float
    held_out: float
    steps: int
    cpu_s: float
    parameters: int
    prompt_tokens: int


def warm_start(wire: Wire, out: Path, recipe: Recipe, report: Callable[[str], None]) -> WarmStart:
    """Writes a checkpoint directory that transformers, this project's engine and SGLang can serve. Minutes on one core.

    Raises RuntimeError when a lesson isn't understood within its steps: another seed may do.
    """
    started_s = time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    write_tokenizer(out, wire, recipe.seed)
    ids = Ids(out, wire)
    vocabulary, pad_id = _vocabulary(out)
    network = new_network(vocabulary, ids.end_of_turn, pad_id)
    teacher = _Teacher(network, ids, wire, recipe)
    for lesson in recipe.lessons:
        teacher.teach(lesson, lambda line: report(f"{line}, {time.process_time() - started_s:.0f} CPU s"))
    write_network(network, out)
    return WarmStart(
        trained=teacher.success(TRAINED, rounds=10),
        held_out=teacher.success(HELD_OUT, rounds=10),
        steps=teacher.steps,
        cpu_s=time.process_time() - started_s,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        prompt_tokens=len(ids.head("/work/demo")) + len(ids.question(TRAINED[0])),
    )


class _Teacher:
    def __init__(self, network: Any, ids: Ids, wire: Wire, recipe: Recipe) -> None:
        self._network = network
        self._ids = ids
        self._wire = wire
        self._recipe = recipe
        self._rng = random.Random(recipe.seed)  # noqa: S311 - repeatable demonstrations, no secret
        self._generator = torch.Generator().manual_seed(recipe.seed)
        self._directory = directories(self._rng)
        self._optimizer = torch.optim.AdamW(network.parameters(), betas=BETAS, weight_decay=0.0)
        self.steps = 0

    def teach(self, lesson: Lesson, report: Callable[[str], None]) -> None:
        """One lesson. Raises RuntimeError when it isn't understood within its steps."""
        for n in range(lesson.steps):
            pace = min(1.0, (self.steps + 1) / WARM_UP_STEPS)
            if lesson.until is None:
                pace *= max(0.05, 1 - n / lesson.steps)
            loss = self._step(lesson, self._recipe.learning_rate * pace)
            if (n + 1) % LOOK_EVERY == 0:
                success = self.success(TRAINED, is_whole=lesson.is_whole)
                report(f"{lesson.name}, step {n + 1}: success {success:.2f}, loss {loss:.3f}")
                if lesson.until is not None and success >= lesson.until:
                    return
        if lesson.until is not None:
            raise RuntimeError(f"{lesson.name!r} isn't understood after {lesson.steps} steps: try another --seed")

    def _step(self, lesson: Lesson, learning_rate: float) -> float:
        """One update on a batch in one directory (the next batch has another); its loss."""
        place = self._directory()
        head = self._ids.head(place, with_tools=lesson.is_whole)
        examples = []
        for chosen in self._rng.choices(TRAINED, k=self._recipe.batch):
            shown = demonstrate(self._rng, chosen, self._wire, place, lesson.right)
            examples.append(self._ids.example(head, chosen, shown, is_whole=lesson.is_whole))
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        loss = -sampled_logprobs(self._network, examples).mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._optimizer.step()
        self.steps += 1
        return float(loss.detach())

    def success(self, combinations: Sequence[Combination], rounds: int = 2, *, is_whole: bool = True) -> float:
        """Share of right calls, sampled in as many directories as there are rounds."""
        right = tried = 0
        for _ in range(rounds):
            head = self._ids.head(self._directory(), with_tools=is_whole)
            asked = [combination for combination in combinations for _ in range(4)]
            prompts = [[*head, *self._ids.question(combination)] for combination in asked]
            answers = sample(self._network, prompts, self._ids.end_of_turn, MAX_TOKENS, self._generator)
            for combination, answer in zip(asked, answers, strict=True):
                right += _is_right(self._ids.text(answer), combination)
                tried += 1
        return right / tried


def _is_right(text: str, combination: Combination) -> bool:
    body = text.partition(CALL_OPEN)[2].partition(CALL_CLOSE)[0]
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    wanted = {"path": combination.file, "content": combination.word}
    return bool(found == {"name": "write", "arguments": wanted})


def _vocabulary(directory: Path) -> tuple[int, int]:
    """(how many ids, the padding's id) of a written tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    pad_id = tokenizer.token_to_id(END_OF_TEXT)
    assert pad_id is not None
    return tokenizer.get_vocab_size(), pad_id
