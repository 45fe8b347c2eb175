"""`polynya harness`: which agent programs there are, installing, trying and recording them, and what is newer than the pins."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from compose.cli.console import async_command, out, print_json
from compose.errors import CommandError, ExitCode, dependency_down, usage
from harnesses import Adapter, HarnessError, InstallError, ensure_installed, find_installed, get, list_harnesses

app = typer.Typer(help="Agent harnesses: list, show, install, try, record, check-updates.", no_args_is_help=True)

# Installing is mostly waiting for a registry, and unpacking: more at once don't get done sooner.
INSTALLS_AT_ONCE = 3
ASKS_AT_ONCE = 4


@app.command("list")
def list_(*, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Every harness, its pinned version, the APIs that it speaks (its default first) and whether it is installed."""
    rows = [
        {
            "name": adapter.name,
            "version": adapter.version,
            "dialect": adapter.dialect,
            "wires": list(adapter.dialects),
            "forward": adapter.has_forward,
            "installed": adapter.install is None or find_installed(adapter) is not None,
        }
        for adapter in _all()
    ]
    if as_json:
        print_json(rows)
        return
    table = Table("name", "version", "wires", "forward", "installed")
    for row in rows:
        wires = ", ".join(row["wires"])  # type: ignore[arg-type]
        table.add_row(str(row["name"]), str(row["version"]), wires, _yes(row["forward"]), _yes(row["installed"]))
    out.print(table)


@app.command("show")
def show(name: str) -> None:
    """A harness' pinned version, what it can do, and its options."""
    adapter = _get(name)
    out.print(f"[bold]{adapter.name}[/] {adapter.version}: {adapter.title}")
    out.print(f"  wires: {', '.join(adapter.dialects)}", markup=False)
    forward = [name for name, wire in adapter.wires.items() if wire.forward is not None]
    if adapter.has_forward:
        out.print(f"  forward mode: {', '.join(forward) or 'yes'}", markup=False)
    if adapter.install is not None:
        package = adapter.install
        out.print(f"  package: {package.package} {package.version} ({package.registry})", markup=False)
    for option, spec in adapter.options.items():
        default = "" if spec.default in (None, {}, []) else f" (default: {json.dumps(spec.default)})"
        kind = f"one of {', '.join(spec.choices)}" if spec.choices else spec.kind
        out.print(f"  options.{option}: {kind}; {spec.help}{default}", markup=False)


@app.command("install")
def install(
    names: Annotated[list[str] | None, typer.Argument(help="harness names; all without any")] = None,
) -> None:
    """Install harnesses once into the cache, in their pinned versions, a few at a time."""
    adapters = [_get(name) for name in names] if names else [a for a in _all() if a.install is not None]

    def one(adapter: Adapter) -> str:
        if adapter.install is None:
            out.print(f"{adapter.name}: nothing to install")
            return ""
        try:
            ensure_installed(adapter, progress=lambda line: out.print(line, markup=False))
        except InstallError as exc:
            return f"{adapter.name}: {exc}"
        out.print(f"{adapter.name} {adapter.version}: ready")
        return ""

    with ThreadPoolExecutor(INSTALLS_AT_ONCE) as pool:
        failed = [error for error in pool.map(one, adapters) if error]
    if failed:
        raise CommandError("\n".join(failed), hint="polynya harness install", code=ExitCode.DEPENDENCY_DOWN)


@app.command("try")
@async_command
async def try_(
    name: Annotated[str, typer.Argument(help="a harness")],
    *,
    wire: Annotated[str | None, typer.Option(help="the API that it is to speak")] = None,
    capture: Annotated[str, typer.Option(help="reverse: our base URL; forward: the vendor's, by proxy")] = "reverse",
    instruction: Annotated[str | None, typer.Option(help="what to ask for; default: the trial's own task")] = None,
    policy: Annotated[str | None, typer.Option(help="the policy that serves the session")] = None,
    options: Annotated[str, typer.Option(help="more harness options, as JSON")] = "{}",
    timeout_s: Annotated[float, typer.Option(help="so long it may run")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """One live session against the running stack, with a verdict; exits 1 when it isn't a good one."""
    from compose.attached import AttachedSessions
    from compose.cli.connect import call_admin, open_bus
    from compose.settings import load
    from compose.trial.live import try_harness

    adapter = _get(name)
    given = _options(adapter, wire, capture, options)
    settings = load()
    # A SIGTERM is a Ctrl-C: the harness is stopped, its directory removed, its session cancelled.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, os.kill, os.getpid(), signal.SIGINT)
    async with open_bus(settings) as bus:
        outcome = await try_harness(
            bus,
            AttachedSessions(bus, lambda address, path, body: call_admin(settings, address, path, body)),
            adapter,
            given,
            policy_id=policy or settings.policy_id,
            instruction=instruction,
            timeout_s=timeout_s,
            report=(lambda _line: None) if as_json else (lambda line: out.print(line, markup=False)),
        )
    if as_json:
        print_json({field: getattr(outcome, field) for field in outcome.__slots__})
    else:
        merged = " + ".join(map(str, outcome.turns_per_trace)) or "none"
        lost = f", untrainable {outcome.untrainable}" if outcome.untrainable else ""
        out.print(f"calls made: {outcome.calls}; trained: {outcome.trained}{lost}", markup=False)
        out.print(f"turns merged: {merged} (in {len(outcome.turns_per_trace)} trace(s))", markup=False)
        out.print(f"exit code {outcome.exit_code} after {outcome.seconds:.1f} s; reward {outcome.reward}", markup=False)
        out.print("[green]verdict: good[/]" if outcome.succeeded else "[red]verdict: bad[/]")
    if not outcome.succeeded:
        raise CommandError(
            f"{name}: {outcome.why}; it said: {outcome.output_tail}",
            hint=f"polynya session show {outcome.session_id[:8]}",
        )


@app.command("record")
@async_command
async def record_(
    names: Annotated[list[str], typer.Argument(help="harness names")],
    *,
    write: Annotated[Path | None, typer.Option(help="a directory for the new summaries: harnesses/wires here")] = None,
) -> None:
    """Record what a harness sends on each of its wires (names and types only) and compare it with the pin's summary."""
    from compose.trial.record import as_file, record
    from harnesses.wire_summary import differences, recorded

    changed: list[str] = []
    for adapter in [_get(name) for name in names]:
        wires: dict[str, Any] = {}
        for wire in adapter.dialects:
            made = await record(adapter, wire, report=lambda line: out.print(line, markup=False))
            if not made.run.verdict.succeeded:
                raise CommandError(
                    f"{adapter.name} on {wire} failed: {made.run.verdict.error}: {made.run.result.tail()}"
                )
            wires[wire] = made.summary
            out.print(f"{adapter.name} {adapter.version} on {wire}: {made.summary['calls']} calls", markup=False)
        old = recorded(adapter.name)
        lines = differences((old or {}).get("wires", {}), wires)
        for line in lines:
            out.print(f"  {line}", markup=False, soft_wrap=True)
        if lines:
            changed.append(adapter.name)
        elif old is not None:
            out.print(f"{adapter.name}: sends what was recorded for its pin", markup=False)
        if write is not None:
            await asyncio.to_thread((write / f"{adapter.name}.json").write_bytes, as_file(adapter, wires))
    if changed and write is None:
        raise CommandError(
            f"the wire of {', '.join(changed)} isn't the recorded one",
            hint="if that is as it should be: polynya harness record NAME --write harnesses/wires",
        )


@app.command("check-updates")
def check_updates(
    names: Annotated[list[str] | None, typer.Argument(help="harness names; all without any")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """What the registries have that is newer than the pins."""
    from harnesses.updates import Update, newest

    adapters = [_get(name) for name in names] if names else _all()

    def one(adapter: Adapter) -> Update | str | None:
        try:
            return newest(adapter)
        except InstallError as exc:
            return f"{adapter.name}: {exc}"

    with ThreadPoolExecutor(ASKS_AT_ONCE) as pool:
        found = list(pool.map(one, adapters))
    updates = [item for item in found if isinstance(item, Update)]
    if as_json:
        print_json(
            [
                {"name": u.name, "package": u.package, "pinned": u.pinned, "newest": u.newest, "is_newer": u.is_newer}
                for u in updates
            ]
        )
    else:
        table = Table("name", "package", "pinned", "newest", "")
        for u in updates:
            table.add_row(u.name, u.package, u.pinned, u.newest, "newer" if u.is_newer else "")
        out.print(table)
    if failed := [item for item in found if isinstance(item, str)]:
        raise dependency_down("\n".join(failed), hint="polynya harness check-updates, when the registry is back")


def _all() -> list[Adapter]:
    try:
        return list_harnesses()
    except HarnessError as exc:
        raise usage(str(exc)) from exc


def _get(name: str) -> Adapter:
    try:
        return get(name)
    except HarnessError as exc:
        raise usage(str(exc), hint="polynya harness list") from exc


def _options(adapter: Adapter, wire: str | None, capture: str, more: str) -> dict[str, object]:
    """The options of a try, checked before anything is opened."""
    from harnesses.options import validate_options

    try:
        given = json.loads(more)
    except json.JSONDecodeError as exc:
        raise usage(f"--options is no JSON: {exc}", hint="""--options '{"max_tokens": 4000}'""") from exc
    if not isinstance(given, dict):
        raise usage("--options must be a JSON object", hint="""--options '{"max_tokens": 4000}'""")
    if wire is not None and (wire != adapter.dialect or "wire" in adapter.options):
        given["wire"] = wire
    if capture != "reverse":
        given["capture"] = capture
    try:
        validate_options(adapter.options, given, adapter.name)
    except HarnessError as exc:
        raise usage(str(exc), hint=f"polynya harness show {adapter.name}") from exc
    return given


def _yes(value: object) -> str:
    return "yes" if value else "no"
