"""`polynya ablation`: the published comparison of builders on our own line, on a stack of its own."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from compose.cli.connect import open_bus
from compose.cli.console import log_apart, out
from compose.cli.running import start_detached, stop_detached
from compose.errors import usage
from compose.runtime_info import log_file, running_info
from compose.settings import load

# Each runs a harness; a third one keeps two cores busy while the others wait for the model.
RUN_SLOTS = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ablation")(ablation)


def ablation(
    *,
    state_dir: Annotated[Path, typer.Option(help="where the stack, the runs and result.json live")] = Path(
        ".polynya/ablation"
    ),
    groups: Annotated[int, typer.Option(min=1, help="groups of four sessions in each captured set")] = 24,
    sequences_per_update: Annotated[int, typer.Option(min=1, help="traces in one update")] = 16,
    live_steps: Annotated[int, typer.Option(min=0, help="steps of each live run; 0: none")] = 12,
    simulated_steps: Annotated[int, typer.Option(min=0, help="steps of each simulated run; 0: none")] = 16,
    only_simulated: Annotated[
        bool, typer.Option("--only-simulated", help="no stack, no agent: the arms in the simulated environment alone")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="of sampling, of the tasks' order, of the trainer")] = 0,
) -> None:
    """The same captured calls as per_request and as prefix_merging, with and without 1/traces, trained; then live runs."""
    from compose.ablation.run import RESULT, SIMULATED, Place, Size, run, run_simulated
    from compose.demo.learning import model_dir
    from harnesses import ensure_installed, get

    settings = load(
        state_dir=state_dir,
        engine="cpu",
        model=str(model_dir()),
        weight_version="0",
        run_slots=RUN_SLOTS,
        forward=False,
    )
    if running_info(settings) is not None:
        raise usage(f"a stack runs in {settings.state_dir}", hint=f"polynya down --state-dir {state_dir}")
    for name in ("kafka", "spool", "training"):
        shutil.rmtree(settings.state_dir / name, ignore_errors=True)
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    size = Size(
        groups=groups,
        sequences_per_update=sequences_per_update,
        live_steps=live_steps,
        simulated_steps=simulated_steps,
        seed=seed,
    )
    began = time.monotonic()
    simulated = asyncio.run(run_simulated(model_dir(), settings.state_dir, size, _show))
    if only_simulated:
        out.print(f"{settings.state_dir / SIMULATED}; {time.monotonic() - began:.0f} s", markup=False)
        return
    ensure_installed(get("pi"), progress=_show)
    info = start_detached(settings, report=_show)
    place = Place(
        state_dir=settings.state_dir,
        model=Path(info.model_dir),
        engine_url=info.engine_url,
        policy_id=settings.policy_id,
    )

    async def all_of_it() -> None:
        async with open_bus(settings) as bus:
            await run(bus, place, size, _show, simulated)

    try:
        with log_apart(log_file(settings.state_dir, "ablation")):
            asyncio.run(all_of_it())
    finally:
        stop_detached(settings, info)
    out.print(f"{settings.state_dir / RESULT}; {time.monotonic() - began:.0f} s", markup=False)


def _show(what: Any) -> None:
    if isinstance(what, str):
        out.print(what, markup=False, highlight=False)
    else:
        out.print(what)
