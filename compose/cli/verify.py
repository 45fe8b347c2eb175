"""`polynya verify`: whether recorded log-probabilities are those of the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bus import TopicMissingError
from compose.cli.console import async_command, err, is_live, out, print_json
from compose.cli.log_source import open_log
from compose.cli.status import resolve_session
from compose.errors import CommandError, usage
from compose.runtime_info import running_info
from compose.settings import load

SHOWN = 20
"""Tokens that are named one by one; the JSON document names all."""
TARGETS = "SESSION|trajectory.built|trajectory.scored|trajectory.replay.NAME"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


@async_command
async def verify(
    target: Annotated[str, typer.Argument(help="a session's id (or its start), or a topic: trajectory.built, …")],
    *,
    model: Annotated[
        Path | None,
        typer.Option(help="the Hugging Face directory of the weights that sampled (default: the running stack's)"),
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="the weight version that MODEL is (default: the only one)")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="1e-4 for a float32 engine, 1e-2 for bf16")] = 1e-4,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 … (default: float32 on cpu, else the model's)")] = "",
    archive: Annotated[Path | None, typer.Option(help="read this archive instead of Kafka")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Recompute the log-probability of every trained token; exits 1 when one differs by more than the tolerance."""
    from compose.cpu_engine.model import ModelError
    from compose.verify import Report
    from compose.verify.check import verify as check
    from compose.verify.gather import find, trajectories
    from compose.verify.scorer import Scorer

    if tolerance < 0:
        raise usage(f"--tolerance {tolerance} must not be less than 0")
    directory = model or _own_model()
    _check_machine(device, dtype)
    is_topic = target.startswith("trajectory.")
    async with open_log(archive) as log:
        topic = target if is_topic else "trajectory.built"
        session = None if is_topic else await resolve_session(log, target, also=topic)
        try:
            found = await find(log, topic, session)
        except TopicMissingError as exc:
            raise usage(f"there is no topic {topic!r}", hint=f"polynya verify {TARGETS} --model DIR") from exc
        if not found.places:
            raise CommandError(f"no trajectory of {target} on {topic}", hint="polynya status")
        chosen = _version(version, found.versions)
        try:
            scorer = await asyncio.to_thread(Scorer, directory, device=device, dtype=dtype)
        except ModelError as exc:
            raise usage(str(exc), hint="polynya verify … --model DIRECTORY") from exc
        report = Report()
        found_trajectories: AsyncGenerator[Any, None] = trajectories(log, topic, found)
        async for one in found_trajectories:
            part = await asyncio.to_thread(check, [one], found.sampling, scorer, version=chosen, tolerance=tolerance)
            report.add(part)
            if is_live():
                err.print(
                    f"{report.trajectories} of {len(found.places)} trajectories, {report.checked} tokens", end="\r"
                )
    if as_json:
        print_json(report.to_json())
    else:
        _show(report, tolerance)
    if report.deviations:
        raise CommandError(f"{len(report.deviations)} of {report.checked} tokens are off by more than {tolerance:g}")
    if not report.checked:
        named = ", ".join(sorted(repr(v) for v in found.versions)) or "none"
        hint = "see the reasons above" if chosen in found.versions else "--version V, with one of these"
        raise CommandError(f"no token could be checked; the trained ones are of version {named}", hint=hint)


def _own_model() -> Path:
    info = running_info(settings := load())
    if info is None or not info.model_dir:
        raise usage(
            f"which weights sampled? No stack runs in {settings.state_dir} that would tell",
            hint="polynya verify … --model DIRECTORY",
        )
    return Path(info.model_dir)


def _check_machine(device: str, dtype: str) -> None:
    """Refuse what torch would meet with an error of its own, after the log was read."""
    import torch

    if dtype and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise usage(f"--dtype {dtype!r} is no type of torch's", hint="--dtype float32, or bfloat16, float16, float64")
    try:
        kind = torch.device(device).type
    except RuntimeError as exc:
        raise usage(f"--device {device!r} is no device: {exc}", hint="--device cpu, or cuda, cuda:1") from exc
    if kind == "cuda" and not torch.cuda.is_available():
        raise usage(f"--device {device}: this machine's torch sees no GPU", hint="--device cpu")


def _version(asked: str | None, versions: set[str]) -> str:
    if asked is not None:
        return asked
    if len(versions) != 1:
        named = ", ".join(sorted(repr(v) for v in versions)) or "none"
        raise usage(
            f"the trained tokens are of {len(versions)} weight versions ({named}), and a model directory is one",
            hint="--version V: tokens of other versions are reported as not checked",
        )
    return next(iter(versions))


def _show(report: Any, tolerance: float) -> None:
    table = Table("version", "tokens checked", "largest difference", "mean difference")
    for name, summary in report.versions.items():
        table.add_row(name or "(unnamed)", f"{summary.checked:,}", f"{summary.largest:.2e}", f"{summary.mean:.2e}")
    out.print(table)
    for (name, reason), tokens in sorted(report.unchecked.items()):
        out.print(f"not checked: {tokens:,} tokens of version {name or '(unnamed)'}: {reason}", markup=False)
    for one in report.deviations[:SHOWN]:
        span = one.span
        out.print(
            f"off by {abs(one.computed - one.recorded):.2e}: session {span.session_id} trace {span.trace} call "
            f"{span.completion_id} span [{span.start}, {span.end}) token {one.at} (id {one.token_id}): recorded "
            f"{one.recorded:.6f}, computed {one.computed:.6f}",
            markup=False,
        )
    if len(report.deviations) > SHOWN:
        out.print(f"… and {len(report.deviations) - SHOWN} more (--json names all)")
    if report.checked and not report.deviations:
        out.print(f"{report.checked:,} trained tokens of {report.trajectories} trajectories are within {tolerance:g}")
