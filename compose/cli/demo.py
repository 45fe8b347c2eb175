"""`polynya demo`: from nothing to a policy that learnt, with everything shut down at the end."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.panel import Panel

from compose.cli.connect import open_bus
from compose.cli.console import log_apart, out
from compose.cli.display import masked_trace, results_table
from compose.cli.running import start_detached, stop_detached
from compose.cli.submit import ProgressPrinter
from compose.errors import CommandError, usage
from compose.runtime_info import StackInfo, log_file, running_info
from compose.settings import StackSettings, load
from schemas.records import ScoredTrajectory

if TYPE_CHECKING:
    from compose.demo.outcome import Outcome
    from trainer_sink.reference import StepReport

HARNESS = "pi"
# Each runs a harness; a third one keeps two cores busy while the others wait for the model.
RUN_SLOTS = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    *,
    state_dir: Annotated[Path, typer.Option(help="where the demo's state lives")] = Path(".polynya/demo"),
    seed: Annotated[int, typer.Option(min=0, help="of the sampling and of the order of tasks")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, max=30, help="exactly so many steps; the gain is told, but not demanded")
    ] = None,
    harness: Annotated[str, typer.Option(help="the agent that is trained through: pi")] = HARNESS,
    scripted: Annotated[
        bool, typer.Option("--scripted", help="no learning: a scripted policy through Pi and Claude Code, in a minute")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="leave the stack running")] = False,
) -> None:
    """Train a tiny model through the real Pi CLI until its reward has risen, and show what happened."""
    if harness != HARNESS:
        raise usage(
            f"the demo trains through {HARNESS}, not through {harness}: the tiny model is taught on what {HARNESS} sends, and "
            "another harness' prompts would be noise to it",
            hint="polynya demo --scripted runs Claude Code, too",
        )
    settings = _settings(state_dir, is_scripted=scripted)
    if running_info(settings) is not None:
        raise usage(f"a stack runs in {settings.state_dir}", hint=f"polynya down --state-dir {state_dir}")
    started = time.monotonic()
    _install(("pi", "claude_code") if scripted else (HARNESS,))
    for name in ("kafka", "spool", "training"):
        shutil.rmtree(settings.state_dir / name, ignore_errors=True)
    out.rule("[bold]2[/] a local stack: Kafka, engine, capture proxy, stream processors, worker")
    signal.signal(signal.SIGTERM, _leave)  # a demo that is told to end takes its stack along
    info = start_detached(settings, report=lambda line: out.print("  " + line, markup=False))
    try:
        if scripted:
            _scripted(settings, info)
            failings: list[str] = []
        else:
            failings = _learning(settings, info, seed, steps)
    finally:
        if not keep:
            stop_detached(settings, info)
            out.print("  the stack is stopped, no process is left")
    if failings:
        raise CommandError("the demo ran, but " + "; ".join(failings), hint=f"logs: {settings.state_dir / 'logs'}")
    out.print(f"[bold green]demo: ok[/] in {time.monotonic() - started:.0f} s")


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _settings(state_dir: Path, *, is_scripted: bool) -> StackSettings:
    if is_scripted:
        from compose.demo.scripted import POLICY

        return load(state_dir=state_dir, engine=POLICY)
    from compose.demo.learning import model_dir

    return load(
        state_dir=state_dir,
        engine="cpu",
        model=str(model_dir()),
        weight_version="0",  # what a trainer calls weights that none has pushed
        run_slots=RUN_SLOTS,
        forward=False,
    )


def _install(names: Sequence[str]) -> None:
    """The agent CLIs, once, into the cache."""
    from harnesses import ensure_installed, get

    out.rule("[bold]1[/] the agent, unmodified, from the npm registry")
    for name in names:
        adapter = get(name)
        ensure_installed(adapter, progress=lambda line: out.print("  " + line, markup=False))
        out.print(f"  {adapter.title} {adapter.version}", markup=False)


def _learning(settings: StackSettings, info: StackInfo, seed: int, steps: int | None) -> list[str]:
    """The run; what isn't as promised."""
    from compose.demo import family, learning
    from harnesses import get

    out.rule("[bold]3[/] reinforcement through the real Pi")
    out.print(
        "  The model has 0.2 M parameters. Its start is a [bold]noisy imitation[/], on purpose: it was shown demonstrations of which\n"
        "  a third were right. What rises from here on is reinforcement, by the reward of sessions alone.\n"
        f"  Task: {family.TRAINED[0].instruction} (24 combinations; 8 more are held out)"
    )
    plan = learning.Plan(
        seed=seed,
        policy_id=settings.policy_id,
        model=Path(info.model_dir),
        output_dir=settings.state_dir / "training",
        steps=steps,
        **({} if steps is None else {"evaluation_steps": 1, "held_out_before": 1, "held_out_after": 1}),
    )
    shown = learning.Shown(line=lambda line: out.print("  " + line, markup=False), step=_print_step)

    async def run() -> tuple[Outcome, list[ScoredTrajectory]]:
        async with open_bus(settings) as bus:
            return await learning.learn(bus, plan, shown, harness_version=get(HARNESS).version)

    with log_apart(log_file(settings.state_dir, "demo")):
        outcome, scored = asyncio.run(run())
    (settings.state_dir / "result.json").write_text(json.dumps(outcome.to_json(), indent=2) + "\n")
    _print_outcome(outcome, settings.state_dir)
    out.rule("[bold]4[/] what a trainer gets")
    _print_trace(max(scored, key=lambda s: (s.reward or 0.0, s.scored_at)), info)
    _export(settings)
    return outcome.failings(is_bounded=steps is not None)


def _print_step(report: StepReport, rewards: Sequence[float], baseline: float) -> None:
    from compose.demo.outcome import WINDOW, bar

    last = rewards[-WINDOW:]
    mean = "of the evaluation"
    if last:
        average = sum(last) / len(last)
        mean = f"mean of {len(last)}: {average:.2f} ({average - baseline:+.2f})"
    out.print(
        f"  step {report.step:2d}  v{report.from_version:>2s} → v{report.version:<2s}  {bar(report.reward, baseline)}  "
        f"{report.reward:.2f}  {mean}  Δlogprob {report.max_logprob_diff:.0e}",
        markup=False,
        highlight=False,
    )


def _print_outcome(outcome: Outcome, state_dir: Path) -> None:
    before, after = outcome.held_out_before, outcome.held_out_after
    reached = "not reached" if outcome.reached_after_s is None else f"after {outcome.reached_after_s:.0f} s"
    out.print(
        f"  baseline {outcome.baseline:.3f} → mean of the last five steps {outcome.baseline + outcome.gain:.3f}: "
        f"gain {outcome.gain:+.3f} ({reached} of the stack being up, {len(outcome.rewards)} steps)\n"
        f"  held-out combinations {before.reward:.3f} → {after.reward:.3f}\n"
        f"  {outcome.sessions} sessions of the real Pi: {outcome.forks} forks, {outcome.lost} lost; logprobs recomputed by the trainer "
        f"differ by {outcome.max_logprob_diff:.1e} at most",
        markup=False,
        highlight=False,
    )
    try:
        from trainer_sink.reference.errors import TrainerError
        from trainer_sink.reference.plot import draw_rewards

        path = draw_rewards(
            outcome.rewards,
            state_dir / "rewards.png",
            title=f"Mean reward through {outcome.harness} {outcome.harness_version}, seed {outcome.seed}",
            baseline=outcome.baseline,
            baseline_name="version 0",
        )
        out.print(f"  {path}", markup=False)
    except TrainerError as error:
        out.print(f"  no picture of the curve: {error}", markup=False)
    out.print(f"  {state_dir / 'result.json'}", markup=False)


def _print_trace(result: ScoredTrajectory, info: StackInfo) -> None:
    from capture_proxy.rendering import load_renderer

    if result.trajectory and result.trajectory.traces:
        text = masked_trace(result.trajectory.traces[0], load_renderer(Path(info.model_dir)).decode)
        out.print(Panel(text, title="one trace; what the policy sampled, and is trained on, is green"))


def _scripted(settings: StackSettings, info: StackInfo) -> None:
    from compose.demo import scripted as steps

    out.print(
        "  The policy is [bold]scripted[/]: a Python function writes the text of each reply. Token ids come from the real\n"
        "  Qwen3 tokenizer and logprobs from a tiny, random model, so nothing behind the engine can tell."
    )
    for number, harness in enumerate(steps.HARNESSES, start=3):
        out.rule(f"[bold]{number}[/] four sessions of {harness}, graded by running what it wrote")
        scored, seconds = asyncio.run(steps.run_harness(settings, harness, ProgressPrinter().show))
        steps.check(harness, scored)
        out.print(results_table(scored))
        out.print(f"  {len(scored)} sessions in {seconds:.1f} s")
        _print_trace(max(scored, key=lambda s: len(s.trajectory.traces[0].turns) if s.trajectory else 0), info)
    out.rule("[bold]5[/] for a trainer")
    _export(settings)


def _export(settings: StackSettings) -> None:
    from compose.demo import scripted as steps

    path = settings.state_dir / "trajectories.parquet"
    rows = asyncio.run(steps.export(settings, path))
    dead = asyncio.run(steps.dead_letters(settings))
    out.print(f"  {path}: {rows} traces; {dead} dead letters", markup=False)
