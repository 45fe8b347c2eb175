"""Options that the commands for data sets share, and what they say to the library."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from bus.deliveries import Start
from compose.cli.log_source import point_in_time
from compose.errors import usage
from schemas.records import Status
from schemas.wishes import GroupWish, Patterns

if TYPE_CHECKING:
    from trainer_sink.export.dataset import Split
    from trainer_sink.export.examples import Acceptance, Choice
    from trainer_sink.export.place import Existing
    from trainer_sink.export.shape import Shape

TOPIC: Final = "trajectory.scored"
_PLACES: Final = re.compile(r"\d+:\d+(,\d+:\d+)*")

Target = Annotated[Path, typer.Argument(metavar="FILE.jsonl|DIR", help="one file, or a data set with a card")]
StatusOption = Annotated[
    list[str] | None,
    typer.Option("--status", help="completed, timeout, failed or cancelled (repeatable; default: completed)"),
]


@dataclass(frozen=True, slots=True)
class Sessions:
    """Which sessions, by their tasks."""

    policy: Annotated[str | None, typer.Option(help="only this policy's sessions")] = None
    task: Annotated[list[str] | None, typer.Option(help="only these tasks, by id or glob (repeatable)")] = None
    harness: Annotated[list[str] | None, typer.Option(help="only these harnesses, by name or glob (repeatable)")] = None
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="only tasks with this metadata; VALUE may be a glob (repeatable)"),
    ] = None

    def acceptance(self, status: Iterable[str], min_reward: float | None) -> Acceptance:
        """Which of them are good enough. Raises a usage error for a status or a pair that is none."""
        from trainer_sink.export.examples import Acceptance

        labels: dict[str, list[str]] = {}
        for pair in self.where or ():
            key, equals, value = pair.partition("=")
            if not equals or not key:
                raise usage(f"--where {pair!r} is no KEY=VALUE", hint="--where repo='django/*'")
            labels.setdefault(key, []).append(value)
        metadata = {key: patterns for key, values in labels.items() if (patterns := Patterns.of(values)) is not None}
        wish = GroupWish(self.policy, Patterns.of(self.task or None), Patterns.of(self.harness or None), metadata)
        return Acceptance(wish=wish, statuses=frozenset(map(_status, status)), min_reward=min_reward)


def _status(name: str) -> Status:
    known = [s.value for s in Status]
    if name not in known:
        raise usage(f"--status {name!r}: must be one of {', '.join(known)}")
    return Status(name)


@dataclass(frozen=True, slots=True)
class Conversations:
    """Which of a session's traces, and how their messages are spelt."""

    branch: Annotated[
        list[str] | None, typer.Option(help="main, sub-agent, branch, retry or aux (repeatable; default: main)")
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="leave out longer conversations (prompt and answers, as the engine counted)"),
    ] = None
    arguments: Annotated[
        Literal["string", "object"],
        typer.Option(help="tool arguments as JSON text (string: OpenAI's form) or as objects (object: some templates)"),
    ] = "string"
    tools: Annotated[
        Literal["list", "string"], typer.Option(help="tools as a list of objects (list) or as one JSON text (string)")
    ] = "list"
    drop_reasoning: Annotated[bool, typer.Option("--drop-reasoning", help="without what the model thought")] = False

    def choice(self) -> Choice:
        """Which of their traces."""
        from trainer_sink.export.examples import MAIN, Choice

        return Choice(branches=frozenset(self.branch or [MAIN]), max_tokens=self.max_tokens)

    def shape(self) -> Shape:
        """How they are spelt."""
        from trainer_sink.export.shape import Shape

        return Shape(arguments=self.arguments, tools=self.tools, keep_reasoning=not self.drop_reasoning)


@dataclass(frozen=True, slots=True)
class SiftedConversations(Conversations):
    """The same, with the choices that only JSON lines have."""

    min_tokens: Annotated[int, typer.Option(min=0, help="leave out shorter conversations")] = 0
    allow_cut: Annotated[
        bool, typer.Option("--allow-cut", help="also conversations whose last reply was cut by its length")
    ] = False
    images: Annotated[
        Literal["refuse", "placeholder", "keep"],
        typer.Option(help="conversations with images: refuse, placeholder (a text), or keep"),
    ] = "refuse"

    def choice(self) -> Choice:
        """Which of their traces."""
        # By name: `super()` doesn't know a class that was made anew for its slots.
        chosen = Conversations.choice(self)
        return dataclasses.replace(chosen, min_tokens=self.min_tokens, allow_cut=self.allow_cut)

    def shape(self) -> Shape:
        """How they are spelt."""
        return dataclasses.replace(Conversations.shape(self), images=self.images)


@dataclass(frozen=True, slots=True)
class Files:
    """How rows are divided, and what the card says of them."""

    validation: Annotated[
        float, typer.Option(min=0, max=1, help="this share of the tasks becomes the split `validation`")
    ] = 0.0
    seed: Annotated[int, typer.Option(help="which tasks those are")] = 0
    licence: Annotated[str, typer.Option("--license", help="SPDX name for the card (of a directory)")] = ""

    def split(self) -> Split:
        """As the library takes it."""
        from trainer_sink.export.dataset import Split

        return Split(validation=self.validation, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Source:
    """What is read, and what becomes of an export that is there."""

    from_: Annotated[
        str | None,
        typer.Option("--from", help="scored from then on: ISO 8601, 2h, epoch ms; or offsets, PARTITION:OFFSET,…"),
    ] = None
    to_: Annotated[
        str | None, typer.Option("--to", help="up to these offsets: PARTITION:OFFSET,… (default: the present end)")
    ] = None
    archive: Annotated[Path | None, typer.Option(help="read this archive instead of Kafka")] = None
    append: Annotated[bool, typer.Option("--append", help="add what came since, to an export that is there")] = False
    replace: Annotated[bool, typer.Option("--replace", help="make an export that is there anew")] = False
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False

    def existing(self) -> Existing:
        """What becomes of an export that is there. Raises a usage error for options that contradict each other."""
        if self.append and self.replace:
            raise usage("--append or --replace, not both")
        if self.append and self.from_ is not None:
            raise usage("--append goes on where the export ends: leave out --from")
        return "append" if self.append else "replace" if self.replace else "refuse"

    def start(self) -> Start:
        """A point in time, or offsets. Raises a usage error for anything else."""
        if self.from_ is not None and _PLACES.fullmatch(self.from_):
            return {(TOPIC, n): offset for n, offset in _places("--from", self.from_).items()}
        since = point_in_time("--from", self.from_)
        return "earliest" if since is None else since

    def until(self) -> Mapping[int, int] | None:
        """Offsets by partition; None: the present end. Raises a usage error for anything else."""
        return None if self.to_ is None else _places("--to", self.to_)


def _places(option: str, text: str) -> Mapping[int, int]:
    """Offsets by partition, of `0:120,1:96`; a usage error for anything else."""
    if not _PLACES.fullmatch(text):
        raise usage(f"{option} {text!r} is no list of offsets", hint=f"{option} 0:120,1:96")
    return {int(n): int(offset) for n, offset in (pair.split(":") for pair in text.split(","))}
