"""`polynya eval`: a task set at one version of a policy's weights, and two such evaluations side by side."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from compose.cli.connect import open_bus
from compose.cli.console import async_command, err, out, print_json
from compose.cli.submit import ProgressPrinter
from compose.cli.task_file import read_tasks
from compose.errors import CommandError, usage
from compose.evaluation.compare import compare as compare_reports
from compose.evaluation.report import Report, interval_name
from compose.settings import load


class _RunByDefault(typer.core.TyperGroup):
    """`polynya eval TASKS` is `polynya eval run TASKS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, with the command that goes without saying."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    cls=_RunByDefault,
    help="Evaluate a policy: polynya eval TASKS --policy P; polynya eval compare A B.",
    no_args_is_help=True,
)


@app.command("run")
@async_command
async def run(
    tasks: Annotated[str, typer.Argument(help="task file (YAML, JSON or JSON lines), or - for standard input")],
    *,
    policy: Annotated[str | None, typer.Option(help="the policy to evaluate (default: the stack's)")] = None,
    version: Annotated[
        str | None, typer.Option(help="the weights' version that is meant (default: the newest published)")
    ] = None,
    harness: Annotated[list[str] | None, typer.Option(help="instead of the tasks' own (repeatable)")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="sessions for each task and harness")] = None,
    accept: Annotated[float, typer.Option(help="a session is accepted from this reward on")] = 1.0,
    to_: Annotated[Path | None, typer.Option("--out", help="write the report, for `eval compare`")] = None,
    timeout_s: Annotated[float, typer.Option(help="how long to wait for all of it")] = 86_400.0,
    strict: Annotated[
        bool, typer.Option("--strict", help="fail when other weights answered, or sessions are missing")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Run a task set and print pass@1 and pass@k, and accepted / attempted by repository, for each harness."""
    from compose.evaluation.run import plan
    from compose.evaluation.run import run as run_plan

    settings = load()
    eval_id = f"eval-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"
    made = plan(
        read_tasks(tasks),
        eval_id=eval_id,
        policy_id=policy or settings.policy_id,
        harnesses=harness or [],
        samples=samples,
    )
    reporter = ProgressPrinter(quiet=as_json)
    async with open_bus(settings) as bus:
        report = await run_plan(
            bus,
            made,
            task_file=tasks,
            version=version,
            accept=accept,
            timeout_s=timeout_s,
            on_change=reporter.show,
        )
    if to_ is not None:
        to_.parent.mkdir(parents=True, exist_ok=True)
        to_.write_text(json.dumps(report.to_json(), indent=1), encoding="utf-8")
    if as_json:
        print_json(report.to_json())
    else:
        show(report)
    warn(report)
    if strict and (report.strangers or report.missing):
        raise CommandError("the evaluation isn't of one version, or isn't whole (--strict)")


@app.command("compare")
def compare(
    first: Annotated[Path, typer.Argument(help="a report of `eval --out`")],
    second: Annotated[Path, typer.Argument(help="another one")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Two evaluations side by side, over the tasks that both have."""
    one, other = Report.read(first), Report.read(second)
    lines = compare_reports(one, other)
    if not lines:
        raise usage("the two have no task and harness in common")
    if as_json:
        print_json([_plain_line(line) for line in lines])
    else:
        table = Table("harness", "", "tasks", _title(one, first), _title(other, second), "difference", "")
        for line in lines:
            clear = "clear" if line.is_clear else "within noise"
            gain = line.gain.text if line.gain.value < 0 else f"+{line.gain.text}"
            table.add_row(
                line.harness, f"pass@{line.k}", str(line.tasks), line.first.text, line.second.text, gain, clear
            )
        out.print(table)
        out.print("difference: the second minus the first over the same tasks, 95 % paired bootstrap")
    for report in (one, other):
        warn(report)


def show(report: Report) -> None:
    """Print a report."""
    version = report.version or "(none published)"
    out.print(f"{report.eval_id}: policy {report.policy_id}, version {version}", markup=False)
    for harness in report.harnesses:
        own = report.of(harness)
        accepted = sum(map(report.is_accepted, own))
        out.print(
            f"\n{harness}: {accepted} accepted of {len(own)} sessions, {len(report.tasks(own))} tasks", markup=False
        )
        ungraded = [attempt for attempt in own if attempt.reward is None]
        if ungraded:
            out.print(f"  {len(ungraded)} could not be graded and count as not accepted", markup=False)
        samples = max(n for _, n in report.tasks(own).values())
        for k in report.ks(own):
            out.print(f"  pass@{k}  {report.pass_at(k, own).text}  ({interval_name(samples)})", markup=False)
        table = Table("repository", "accepted", "attempted", "share (95 % Wilson)")
        for name, (done, tried, share) in report.repositories(own).items():
            table.add_row(name, str(done), str(tried), share.text)
        out.print(table)


def warn(report: Report) -> None:
    """Say loudly what a reader of the numbers must know."""
    if report.strangers:
        total = sum(report.versions.values())
        shares = ", ".join(
            f"{v or '(unnamed)'}: {n} tokens, {100 * n / total:.1f} %" for v, n in report.versions.items()
        )
        meant = report.version or "(none published)"
        err.print(
            f"[bold white on red] OTHER WEIGHTS ANSWERED [/] {report.eval_id}: version {meant} was to be evaluated, but the "
            f"answers come from {shares}. These numbers are no one version's."
        )
    if report.missing:
        err.print(f"[bold red]{report.missing} sessions are missing[/]: they hadn't ended in time and aren't counted")


def _title(report: Report, path: Path) -> str:
    return f"{path.name} ({report.policy_id} {report.version})".replace("[", "\\[")


def _plain_line(line: Any) -> dict[str, Any]:
    shares = {name: getattr(line, name) for name in ("first", "second", "gain")}
    return {
        "harness": line.harness,
        "k": line.k,
        "tasks": line.tasks,
        "is_clear": line.is_clear,
        **{name: {"value": share.value, "low": share.low, "high": share.high} for name, share in shares.items()},
    }
