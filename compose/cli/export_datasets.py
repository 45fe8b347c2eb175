"""`polynya export sft`, `preferences` and `hf`: data sets out of scored trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from compose.cli.export_options import (
    Conversations,
    Files,
    Sessions,
    SiftedConversations,
    Source,
    StatusOption,
    Target,
)
from compose.cli.export_run import run_export
from compose.cli.options import spread_command
from compose.errors import usage
from schemas.records import Status


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        "sft", epilog="polynya export sft sft.jsonl --max-tokens 32768 --where repo='django/*' --validation 0.1"
    )(sft)
    app.command("preferences", epilog="polynya export preferences pairs/ --margin 0.5")(preferences)
    app.command("hf", epilog="polynya export hf dataset/ --rows sft --license apache-2.0 --validation 0.05")(hf)


@spread_command
async def sft(
    target: Target,
    *,
    sessions: Sessions,
    status: StatusOption = None,
    min_reward: Annotated[float, typer.Option(help="a session is accepted from this reward on")] = 1.0,
    conversations: SiftedConversations,
    bare: Annotated[bool, typer.Option("--bare", help="rows of `messages` and `tools` alone")] = False,
    files: Files,
    source: Source,
) -> None:
    """Conversations of accepted sessions as JSON lines in OpenAI's message form, tools kept, to fine-tune on."""
    from trainer_sink.export.dataset import Layout
    from trainer_sink.export.sft import SftRows

    maker = SftRows(
        acceptance=sessions.acceptance(status or ["completed"], min_reward),
        choice=conversations.choice(),
        shape=conversations.shape(),
    )
    await run_export(target, maker, Layout(split=files.split(), bare=bare, licence=files.licence), source)


@spread_command
async def preferences(
    target: Target,
    *,
    margin: Annotated[
        float, typer.Option(min=0, help="the least difference of the two rewards; ties are never pairs")
    ] = 0.0,
    per_group: Annotated[
        int, typer.Option(min=1, help="so many pairs of a group at most; a session is in one at most")
    ] = 1,
    allow_incomplete: Annotated[
        bool, typer.Option("--allow-incomplete", help="also groups of which sessions are still out")
    ] = False,
    sessions: Sessions,
    status: StatusOption = None,
    min_reward: Annotated[float | None, typer.Option(help="only sessions from this reward on")] = None,
    conversations: SiftedConversations,
    bare: Annotated[
        bool, typer.Option("--bare", help="rows of `prompt`, `chosen`, `rejected` and `tools` alone")
    ] = False,
    files: Files,
    source: Source,
) -> None:
    """Pairs of a group's sessions with one prompt and different rewards, in TRL's conversational form (prompt, chosen, rejected)."""
    from trainer_sink.export.dataset import Layout
    from trainer_sink.export.preferences import PreferenceRows

    maker = PreferenceRows(
        acceptance=sessions.acceptance(status or ["completed"], min_reward),
        choice=conversations.choice(),
        shape=conversations.shape(),
        margin=margin,
        per_group=per_group,
        allow_incomplete=allow_incomplete,
    )
    await run_export(target, maker, Layout(split=files.split(), bare=bare, licence=files.licence), source)


@spread_command
async def hf(
    target: Annotated[Path, typer.Argument(metavar="DIR", help="the directory to make")],
    *,
    rows: Annotated[
        Literal["traces", "sft", "preferences"],
        typer.Option(help="traces (every session, with tokens), sft or preferences (as the commands of that name)"),
    ] = "traces",
    sessions: Sessions,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", help="completed, timeout, failed or cancelled (repeatable; default: of traces all)"),
    ] = None,
    min_reward: Annotated[
        float | None, typer.Option(help="only sessions from this reward on (default: of sft 1)")
    ] = None,
    conversations: Conversations,
    margin: Annotated[float, typer.Option(min=0, help="of preferences: the least difference of the two rewards")] = 0.0,
    files: Files,
    shard_mb: Annotated[int, typer.Option(min=1, help="a file takes about so many megabytes of rows")] = 256,
    source: Source,
) -> None:
    """A Hugging Face data set: Parquet shards, a card, a manifest. `datasets.load_dataset(DIR)` and the hub read it as it is."""
    if rows == "traces" and conversations != Conversations():
        raise usage(
            "--branch, --max-tokens, --arguments, --tools and --drop-reasoning are of conversations: rows of traces have all "
            "traces as they are",
            hint=f"polynya export hf {target} --rows sft",
        )
    if rows != "preferences" and margin:
        raise usage(
            f"--margin is of pairs, not of rows of {rows}", hint=f"polynya export hf {target} --rows preferences"
        )
    from trainer_sink.export.dataset import Layout
    from trainer_sink.export.preferences import PreferenceRows
    from trainer_sink.export.sft import SftRows
    from trainer_sink.export.traces import TraceRows

    least = 1.0 if rows == "sft" and min_reward is None else min_reward
    acceptance = sessions.acceptance(
        status or ([s.value for s in Status] if rows == "traces" else ["completed"]), least
    )
    choice, shape = conversations.choice(), conversations.shape()
    maker: SftRows | PreferenceRows | TraceRows
    if rows == "traces":
        maker = TraceRows(acceptance=acceptance)
    elif rows == "sft":
        maker = SftRows(acceptance=acceptance, choice=choice, shape=shape)
    else:
        maker = PreferenceRows(acceptance=acceptance, choice=choice, shape=shape, margin=margin)
    layout = Layout(format="parquet", split=files.split(), licence=files.licence, shard_bytes=shard_mb << 20)
    await run_export(target, maker, layout, source)
