"""Noisy demonstrations: how an agent that half knows its job would answer. Pure, given the random numbers."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from compose.demo.family import FILES, WORDS, Combination
from compose.demo.warm_start.wire import Wire

CALL_OPEN: Final = "<tool_call>\n"
CALL_CLOSE: Final = "\n</tool_call>"
REFUSAL: Final = "I can not do that."
FAREWELL: Final = "Done."

# Shares among the demonstrations that aren't right.
MISTAKES: Final = (("word", 0.35), ("file", 0.25), ("read", 0.15), ("refusal", 0.15), ("broken", 0.10))

_NAMES = ("tmp", "home", "work", "workspace", "repo", "app", "run", "user", "root", "var", "srv", "src", "data", "demo")
_LETTERS = string.ascii_lowercase + string.digits + "-_"


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The answer's text, and what the harness says then ('' where the session ends with the answer)."""

    kind: str
    answer: str
    tool_answer: str


def call(name: str, **arguments: Any) -> str:
    """A tool call as the model writes it."""
    return CALL_OPEN + json.dumps({"name": name, "arguments": arguments}) + CALL_CLOSE


def demonstrate(
    rng: random.Random, combination: Combination, wire: Wire, directory: str, right: float
) -> Demonstration:
    """An answer to a combination's instruction that is right with probability `right`, else has one of five mistakes."""
    word, file = combination.word, combination.file
    kind = "right"
    if rng.random() >= right:
        kind = rng.choices([name for name, _ in MISTAKES], [share for _, share in MISTAKES])[0]
    other_word = rng.choice([other for other in WORDS if other != word])
    other_file = rng.choice([other for other in FILES if other != file])
    writes = {"right": (file, word), "word": (file, other_word), "file": (other_file, word)}
    if kind in writes:
        path, content = writes[kind]
        return Demonstration(
            kind, call("write", path=path, content=content), wire.answer_to_write(path, content, directory)
        )
    if kind == "read":
        return Demonstration(kind, call("read", path=file), wire.answer_to_read(file, directory))
    if kind == "refusal":
        return Demonstration(kind, REFUSAL, "")
    return Demonstration(kind, call("write", path=file, content=word).replace('"}}', '"}'), "")


def directories(rng: random.Random) -> Callable[[], str]:
    """Working directories as sessions have them: a run's path stands in the prompt, so the policy must not depend on it."""

    def segment() -> str:
        match rng.randrange(6):
            case 0 | 1:
                return rng.choice(_NAMES)
            case 2:
                return ("." if rng.random() < 0.2 else "") + rng.choice(_NAMES) + rng.choice("-_.") + rng.choice(_NAMES)
            case 3:
                return f"{rng.getrandbits(32):08x}" + ("-" + str(rng.randint(1, 9))) * rng.randrange(2)
            case 4:
                digits = f"{rng.getrandbits(128):032x}"
                return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
            case _:
                return "".join(rng.choices(_LETTERS, k=rng.randint(1, 12)))

    def directory() -> str:
        return "/" + "/".join(segment() for _ in range(rng.randint(1, 7)))

    return directory
