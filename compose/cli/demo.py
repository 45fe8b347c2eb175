"""`polynya demo`: the main job from nothing to trajectories, with everything shut down at the end."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.panel import Panel

from compose.cli.console import out
from compose.cli.display import masked_trace, results_table
from compose.cli.running import start_detached, stop_detached
from compose.cli.submit import ProgressPrinter
from compose.errors import usage
from compose.runtime_info import running_info
from compose.settings import load


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    *,
    state_dir: Annotated[Path, typer.Option(help="where the demo's state lives")] = Path(".polynya/demo"),
    keep: Annotated[bool, typer.Option("--keep", help="leave the stack running")] = False,
) -> None:
    """Run real agent CLIs through the whole line and show what a trainer gets."""
    from compose.demo import run as steps

    settings = load(state_dir=state_dir, engine=steps.POLICY)
    if running_info(settings) is not None:
        raise usage(f"a stack runs in {settings.state_dir}", hint=f"polynya down --state-dir {state_dir}")
    started = time.monotonic()
    out.rule("[bold]1[/] the agents, unmodified, from the npm registry")
    steps.install(lambda line: out.print("  " + line, markup=False))
    out.rule("[bold]2[/] a local stack: Kafka, engine, capture proxy, stream processors, worker")
    out.print(
        "  The policy is [bold]scripted[/]: a Python function writes the text of each reply. Token ids come from the real\n"
        "  Qwen3 tokenizer and logprobs from a tiny, random model, so nothing behind the engine can tell."
    )
    shutil.rmtree(settings.state_dir / "kafka", ignore_errors=True)
    shutil.rmtree(settings.state_dir / "spool", ignore_errors=True)
    info = start_detached(settings, report=lambda line: out.print("  " + line, markup=False))
    try:
        for number, harness in enumerate(steps.HARNESSES, start=3):
            out.rule(f"[bold]{number}[/] four sessions of {harness}, graded by running what it wrote")
            scored, seconds = asyncio.run(steps.run_harness(settings, harness, ProgressPrinter().show))
            steps.check(harness, scored)
            out.print(results_table(scored))
            out.print(f"  {len(scored)} sessions in {seconds:.1f} s")
            longest = max(scored, key=lambda s: len(s.trajectory.traces[0].turns) if s.trajectory else 0)
            if longest.trajectory:
                text = masked_trace(longest.trajectory.traces[0], steps.decoder(info))
                out.print(Panel(text, title="one trace; what the policy sampled, and is trained on, is green"))
        out.rule("[bold]5[/] for a trainer")
        path = settings.state_dir / "trajectories.parquet"
        rows = asyncio.run(steps.export(settings, path))
        dead = asyncio.run(steps.dead_letters(settings))
        out.print(f"  {path}: {rows} traces; {dead} dead letters")
    finally:
        if not keep:
            stop_detached(settings, info)
            out.print("  the stack is stopped, no process is left")
    out.print(f"[bold green]demo: ok[/] in {time.monotonic() - started:.0f} s")
