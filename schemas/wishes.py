"""Which groups a trainer wishes for, by what is known before they run: the sink skips by it, the orchestrator counts its lag by it.

It travels as the `filter` of TrainerRegistered. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, Self

LABEL_LENGTH: Final = 200
"""Longer texts in a task's metadata are content, not labels: every row of a group would carry them."""

_RANK: Final = re.compile(r"(.+)\.rank\d+")

Refusal = Literal["policy", "task", "harness", "metadata"]


def labels(metadata: Any) -> dict[str, list[str]]:
    """The part of a task's metadata by which trainers choose, as texts: top-level texts, numbers and yes/no, and lists of those."""
    if not isinstance(metadata, Mapping):
        return {}
    found = {_plain(str(name)): [_plain(text) for text in _texts(value)] for name, value in metadata.items()}
    return {name: texts for name, texts in found.items() if texts and max(map(len, texts)) <= LABEL_LENGTH}


def _plain(text: str) -> str:
    """The text as any JSON can hold it, without lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _texts(value: Any) -> Iterator[str]:
    """A label as the texts that patterns are compared with; nothing where it is none."""
    for one in value if isinstance(value, list | tuple) else [value]:
        if isinstance(one, bool):
            yield "true" if one else "false"
        elif isinstance(one, str | int | float):
            yield str(one)


def trainer_of(trainer_id: str) -> str:
    """The trainer that a reader belongs to: `grpo` for `grpo.rank3`, itself for any other id."""
    found = _RANK.fullmatch(trainer_id)
    return found.group(1) if found else trainer_id


def is_for(for_trainer: str, trainer_id: str) -> bool:
    """Whether a group that was run for `for_trainer` ('': for all) is for this one; ranks of one trainer read for each other."""
    return for_trainer in ("", trainer_id) or trainer_of(for_trainer) == trainer_of(trainer_id)


@dataclass(frozen=True, slots=True)
class Patterns:
    """A set of texts, some of which may be globs (`*`, `?`, `[…]`; upper and lower case differ)."""

    texts: frozenset[str]
    _globs: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        """Keep the globs apart: most sets are thousands of plain names."""
        object.__setattr__(self, "_globs", tuple(sorted(t for t in self.texts if any(c in t for c in "*?["))))

    @classmethod
    def of(cls, values: Iterable[Any] | str | None) -> Self | None:
        """From one text or several; None (any) from None."""
        if values is None:
            return None
        if isinstance(values, str | bytes | int | float) or not isinstance(values, Iterable):
            values = [values]
        return cls(frozenset(text for value in values for text in _texts(value)))

    def __contains__(self, text: str) -> bool:
        """Whether the text is one of them, or a glob fits it."""
        return text in self.texts or any(fnmatchcase(text, glob) for glob in self._globs)

    def to_json(self) -> list[str]:
        """The texts, sorted."""
        return sorted(self.texts)


@dataclass(frozen=True, slots=True)
class GroupWish:
    """The wishes; None means any. Of `metadata` every named label has to fit; one that a task lacks doesn't."""

    policy_id: str | None = None
    tasks: Patterns | None = None
    harnesses: Patterns | None = None
    metadata: Mapping[str, Patterns] = field(default_factory=dict)

    def refuses(self, *, policy_id: str, task_id: str, harness: str, metadata: Any) -> Refusal | None:
        """Which wish a group doesn't fit; None when it fits all. `metadata` is the task's, or its `labels`."""
        if self.policy_id is not None and policy_id != self.policy_id:
            return "policy"
        if self.tasks is not None and task_id not in self.tasks:
            return "task"
        if self.harnesses is not None and harness not in self.harnesses:
            return "harness"
        if self.metadata:
            has = labels(metadata)
            if not all(any(text in wish for text in has.get(name, ())) for name, wish in self.metadata.items()):
                return "metadata"
        return None

    def to_json(self) -> dict[str, Any]:
        """As it is announced."""
        return {
            "policy_id": self.policy_id,
            "task_ids": None if self.tasks is None else self.tasks.to_json(),
            "harnesses": None if self.harnesses is None else self.harnesses.to_json(),
            "metadata": {name: wish.to_json() for name, wish in sorted(self.metadata.items())},
        }

    @classmethod
    def from_json(cls, announced: Any) -> Self:
        """Read what a trainer of this or another release announced; what is missing or no wish means any."""
        wish = announced if isinstance(announced, Mapping) else {}
        metadata = wish.get("metadata")
        return cls(
            wish.get("policy_id") or None,
            Patterns.of(wish.get("task_ids")),
            Patterns.of(wish.get("harnesses")),
            {
                str(name): found
                for name, texts in (metadata.items() if isinstance(metadata, Mapping) else ())
                if (found := Patterns.of(texts)) is not None
            },
        )
