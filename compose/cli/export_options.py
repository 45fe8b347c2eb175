"""Options that the commands for data sets share, and what they say to the library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from bus.deliveries import Start
from compose.cli.log_source import point_in_time
from compose.errors import usage
from schemas.records import Status
from schemas.wishes import GroupWish, Patterns

if TYPE_CHECKING:
    from trainer_sink.export.examples import Acceptance, Choice

TOPIC: Final = "trajectory.scored"
_PLACES: Final = re.compile(r"\d+:\d+(,\d+:\d+)*")

Policy = Annotated[str | None, typer.Option(help="only this policy's sessions")]
Task = Annotated[list[str] | None, typer.Option(help="only these tasks, by id or glob (repeatable)")]
Harness = Annotated[list[str] | None, typer.Option(help="only these harnesses, by name or glob (repeatable)")]
Where = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="only tasks with this metadata; VALUE may be a glob (repeatable)"),
]
MinReward = Annotated[float, typer.Option(help="a session is accepted from this reward on")]
AnyReward = Annotated[float | None, typer.Option(help="only sessions from this reward on")]
StatusOption = Annotated[
    list[str] | None,
    typer.Option("--status", help="completed, timeout, failed or cancelled (repeatable; default: completed)"),
]
Branch = Annotated[
    list[str] | None, typer.Option(help="main, sub-agent, branch, retry or aux (repeatable; default: main)")
]
MinTokens = Annotated[int, typer.Option(min=0, help="leave out shorter conversations")]
MaxTokens = Annotated[
    int | None, typer.Option(min=1, help="leave out longer conversations (prompt and answers, as the engine counted)")
]
AllowCut = Annotated[
    bool, typer.Option("--allow-cut", help="also conversations whose last reply was cut by its length")
]
ArgumentsOption = Annotated[
    Literal["string", "object"],
    typer.Option(help="tool arguments as JSON text (string: OpenAI's form) or as objects (object: some templates)"),
]
ToolsOption = Annotated[
    Literal["list", "string"], typer.Option(help="tools as a list of objects (list) or as one JSON text (string)")
]
DropReasoning = Annotated[bool, typer.Option("--drop-reasoning", help="without what the model thought")]
ImagesOption = Annotated[
    Literal["refuse", "placeholder", "keep"],
    typer.Option(help="conversations with images: refuse, placeholder (a text), or keep"),
]
Validation = Annotated[float, typer.Option(min=0, max=1, help="this share of the tasks becomes the split `validation`")]
Seed = Annotated[int, typer.Option(help="which tasks those are")]
Licence = Annotated[str, typer.Option("--license", help="SPDX name for the card (of a directory)")]
From = Annotated[
    str | None,
    typer.Option("--from", help="scored from then on: ISO 8601, 2h, epoch ms; or offsets, PARTITION:OFFSET,…"),
]
To = Annotated[
    str | None, typer.Option("--to", help="up to these offsets: PARTITION:OFFSET,… (default: the present end)")
]
Archive = Annotated[Path | None, typer.Option(help="read this archive instead of Kafka")]
Append = Annotated[bool, typer.Option("--append", help="add what came since, to an export that is there")]
Replace = Annotated[bool, typer.Option("--replace", help="make an export that is there anew")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON document on stdout")]


def accept(
    *,
    policy: str | None,
    task: Iterable[str] | None,
    harness: Iterable[str] | None,
    where: Iterable[str] | None,
    status: Iterable[str],
    min_reward: float | None,
) -> Acceptance:
    """Which sessions are good enough. Raises a usage error for a status or a pair that is none."""
    from trainer_sink.export.examples import Acceptance

    labels: dict[str, list[str]] = {}
    for pair in where or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise usage(f"--where {pair!r} is no KEY=VALUE", hint="--where repo='django/*'")
        labels.setdefault(key, []).append(value)
    metadata = {key: patterns for key, values in labels.items() if (patterns := Patterns.of(values)) is not None}
    wish = GroupWish(policy, Patterns.of(task or None), Patterns.of(harness or None), metadata)
    return Acceptance(wish=wish, statuses=frozenset(map(_status, status)), min_reward=min_reward)


def _status(name: str) -> Status:
    known = [s.value for s in Status]
    if name not in known:
        raise usage(f"--status {name!r}: must be one of {', '.join(known)}")
    return Status(name)


def choose(
    branch: list[str] | None, *, min_tokens: int = 0, max_tokens: int | None = None, allow_cut: bool = False
) -> Choice:
    """Which of their traces."""
    from trainer_sink.export.examples import MAIN, Choice

    branches = frozenset(branch or [MAIN])
    return Choice(branches=branches, min_tokens=min_tokens, max_tokens=max_tokens, allow_cut=allow_cut)


def begin(text: str | None) -> Start:
    """What `--from` says: a point in time, or offsets. Raises a usage error for anything else."""
    if text is not None and _PLACES.fullmatch(text):
        return {(TOPIC, n): offset for n, offset in places("--from", text).items()}
    since = point_in_time("--from", text)
    return "earliest" if since is None else since


def places(option: str, text: str) -> Mapping[int, int]:
    """Offsets by partition, of `0:120,1:96`; a usage error for anything else."""
    if not _PLACES.fullmatch(text):
        raise usage(f"{option} {text!r} is no list of offsets", hint=f"{option} 0:120,1:96")
    return {int(n): int(offset) for n, offset in (pair.split(":") for pair in text.split(","))}
