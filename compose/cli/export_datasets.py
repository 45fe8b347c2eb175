"""`polynya export sft`, `preferences` and `hf`: data sets out of scored trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from compose.cli.console import async_command
from compose.cli.export_options import (
    AllowCut,
    AnyReward,
    Append,
    Archive,
    ArgumentsOption,
    AsJson,
    Branch,
    DropReasoning,
    From,
    Harness,
    ImagesOption,
    Licence,
    MaxTokens,
    MinReward,
    MinTokens,
    Policy,
    Replace,
    Seed,
    StatusOption,
    Task,
    To,
    ToolsOption,
    Validation,
    Where,
    accept,
    choose,
)
from compose.cli.export_run import run_export
from schemas.records import Status


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        "sft", epilog="polynya export sft sft.jsonl --max-tokens 32768 --where repo='django/*' --validation 0.1"
    )(sft)
    app.command("preferences", epilog="polynya export preferences pairs/ --margin 0.5")(preferences)
    app.command("hf", epilog="polynya export hf dataset/ --rows sft --license apache-2.0 --validation 0.05")(hf)


@async_command
async def sft(
    target: Annotated[Path, typer.Argument(metavar="FILE.jsonl|DIR", help="one file, or a data set with a card")],
    *,
    policy: Policy = None,
    task: Task = None,
    harness: Harness = None,
    where: Where = None,
    status: StatusOption = None,
    min_reward: MinReward = 1.0,
    branch: Branch = None,
    min_tokens: MinTokens = 0,
    max_tokens: MaxTokens = None,
    allow_cut: AllowCut = False,
    arguments: ArgumentsOption = "string",
    tools: ToolsOption = "list",
    drop_reasoning: DropReasoning = False,
    images: ImagesOption = "refuse",
    bare: Annotated[bool, typer.Option("--bare", help="rows of `messages` and `tools` alone")] = False,
    validation: Validation = 0.0,
    seed: Seed = 0,
    licence: Licence = "",
    from_: From = None,
    to_: To = None,
    archive: Archive = None,
    append: Append = False,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Conversations of accepted sessions as JSON lines in OpenAI's message form, tools kept, to fine-tune on."""
    from trainer_sink.export.dataset import Layout, Split
    from trainer_sink.export.sft import SftRows
    from trainer_sink.export.shape import Shape

    maker = SftRows(
        acceptance=accept(
            policy=policy,
            task=task,
            harness=harness,
            where=where,
            status=status or ["completed"],
            min_reward=min_reward,
        ),
        choice=choose(branch, min_tokens=min_tokens, max_tokens=max_tokens, allow_cut=allow_cut),
        shape=Shape(arguments=arguments, tools=tools, images=images, keep_reasoning=not drop_reasoning),
    )
    layout = Layout(split=Split(validation=validation, seed=seed), bare=bare, licence=licence)
    await run_export(
        target,
        maker,
        layout,
        from_=from_,
        to_=to_,
        archive=archive,
        append=append,
        replace=replace,
        as_json=as_json,
    )


@async_command
async def preferences(
    target: Annotated[Path, typer.Argument(metavar="FILE.jsonl|DIR", help="one file, or a data set with a card")],
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
    policy: Policy = None,
    task: Task = None,
    harness: Harness = None,
    where: Where = None,
    status: StatusOption = None,
    min_reward: AnyReward = None,
    branch: Branch = None,
    min_tokens: MinTokens = 0,
    max_tokens: MaxTokens = None,
    allow_cut: AllowCut = False,
    arguments: ArgumentsOption = "string",
    tools: ToolsOption = "list",
    drop_reasoning: DropReasoning = False,
    images: ImagesOption = "refuse",
    bare: Annotated[
        bool, typer.Option("--bare", help="rows of `prompt`, `chosen`, `rejected` and `tools` alone")
    ] = False,
    validation: Validation = 0.0,
    seed: Seed = 0,
    licence: Licence = "",
    from_: From = None,
    to_: To = None,
    archive: Archive = None,
    append: Append = False,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Pairs of a group's sessions with one prompt and different rewards, in TRL's conversational form (prompt, chosen, rejected)."""
    from trainer_sink.export.dataset import Layout, Split
    from trainer_sink.export.preferences import PreferenceRows
    from trainer_sink.export.shape import Shape

    maker = PreferenceRows(
        acceptance=accept(
            policy=policy,
            task=task,
            harness=harness,
            where=where,
            status=status or ["completed"],
            min_reward=min_reward,
        ),
        choice=choose(branch, min_tokens=min_tokens, max_tokens=max_tokens, allow_cut=allow_cut),
        shape=Shape(arguments=arguments, tools=tools, images=images, keep_reasoning=not drop_reasoning),
        margin=margin,
        per_group=per_group,
        allow_incomplete=allow_incomplete,
    )
    layout = Layout(split=Split(validation=validation, seed=seed), bare=bare, licence=licence)
    await run_export(
        target,
        maker,
        layout,
        from_=from_,
        to_=to_,
        archive=archive,
        append=append,
        replace=replace,
        as_json=as_json,
    )


@async_command
async def hf(
    target: Annotated[Path, typer.Argument(metavar="DIR", help="the directory to make")],
    *,
    rows: Annotated[
        Literal["traces", "sft", "preferences"],
        typer.Option(help="traces (every session, with tokens), sft or preferences (as the commands of that name)"),
    ] = "traces",
    policy: Policy = None,
    task: Task = None,
    harness: Harness = None,
    where: Where = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", help="completed, timeout, failed or cancelled (repeatable; default: of traces all)"),
    ] = None,
    min_reward: Annotated[
        float | None, typer.Option(help="only sessions from this reward on (default: of sft 1)")
    ] = None,
    branch: Branch = None,
    max_tokens: MaxTokens = None,
    arguments: ArgumentsOption = "string",
    tools: ToolsOption = "list",
    drop_reasoning: DropReasoning = False,
    margin: Annotated[float, typer.Option(min=0, help="of preferences: the least difference of the two rewards")] = 0.0,
    validation: Validation = 0.0,
    seed: Seed = 0,
    licence: Licence = "",
    shard_mb: Annotated[int, typer.Option(min=1, help="a file takes about so many megabytes of rows")] = 256,
    from_: From = None,
    to_: To = None,
    archive: Archive = None,
    append: Append = False,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """A Hugging Face data set: Parquet shards, a card, a manifest. `datasets.load_dataset(DIR)` and the hub read it as it is."""
    from trainer_sink.export.dataset import Layout, Split
    from trainer_sink.export.preferences import PreferenceRows
    from trainer_sink.export.sft import SftRows
    from trainer_sink.export.shape import Shape
    from trainer_sink.export.traces import TraceRows

    least = 1.0 if rows == "sft" and min_reward is None else min_reward
    ended = status or ([s.value for s in Status] if rows == "traces" else ["completed"])
    graded = accept(policy=policy, task=task, harness=harness, where=where, status=ended, min_reward=least)
    chosen = choose(branch, max_tokens=max_tokens)
    spelt = Shape(arguments=arguments, tools=tools, keep_reasoning=not drop_reasoning)
    maker: SftRows | PreferenceRows | TraceRows
    if rows == "traces":
        maker = TraceRows(acceptance=graded)
    elif rows == "sft":
        maker = SftRows(acceptance=graded, choice=chosen, shape=spelt)
    else:
        maker = PreferenceRows(acceptance=graded, choice=chosen, shape=spelt, margin=margin)
    layout = Layout(
        format="parquet",
        split=Split(validation=validation, seed=seed),
        licence=licence,
        shard_bytes=shard_mb << 20,
    )
    await run_export(
        target,
        maker,
        layout,
        from_=from_,
        to_=to_,
        archive=archive,
        append=append,
        replace=replace,
        as_json=as_json,
    )
