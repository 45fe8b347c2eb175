"""`polynya harness`: which agent programs there are, and installing them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from compose.cli.console import out, print_json
from compose.errors import CommandError, ExitCode, usage

app = typer.Typer(help="Agent harnesses: list, show, install.", no_args_is_help=True)


@app.command("list")
def list_(*, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Every harness, its pinned version, the API that it speaks and whether it is installed."""
    from harnesses import find_installed, list_harnesses

    rows = []
    for adapter in list_harnesses():
        installed = adapter.install is None or find_installed(adapter) is not None
        rows.append(
            {"name": adapter.name, "version": adapter.version, "dialect": adapter.dialect, "installed": installed}
        )
    if as_json:
        print_json(rows)
        return
    table = Table("name", "version", "dialect", "installed")
    for row in rows:
        table.add_row(str(row["name"]), str(row["version"]), str(row["dialect"]), "yes" if row["installed"] else "no")
    out.print(table)


@app.command("show")
def show(name: str) -> None:
    """A harness' options and pinned version."""
    from harnesses import HarnessError, get

    try:
        adapter = get(name)
    except HarnessError as exc:
        raise usage(str(exc), hint="polynya harness list") from exc
    out.print(f"[bold]{adapter.name}[/] {adapter.version}: {adapter.title}, speaks {adapter.dialect}")
    for option, spec in adapter.options.items():
        out.print(f"  options.{option}: {spec.kind}; {spec.help}", markup=False)


@app.command("install")
def install(names: Annotated[list[str], typer.Argument(help="harness names")]) -> None:
    """Install harnesses once into the cache, in their pinned versions."""
    from harnesses import HarnessError, InstallError, ensure_installed, get

    try:
        adapters = [get(name) for name in names]
    except HarnessError as exc:
        raise usage(str(exc), hint="polynya harness list") from exc
    for adapter in adapters:
        if adapter.install is None:
            out.print(f"{adapter.name}: nothing to install")
            continue
        try:
            ensure_installed(adapter, progress=lambda line: out.print(line, markup=False))
        except InstallError as exc:
            raise CommandError(str(exc), code=ExitCode.DEPENDENCY_DOWN) from exc
        out.print(f"{adapter.name} {adapter.version}: ready")
