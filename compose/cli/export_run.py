"""One export as a command does it: opens the log, writes, says what is in it and what isn't."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from compose.cli.console import err, out, print_json
from compose.cli.export_options import Source
from compose.cli.log_source import open_log
from compose.errors import CommandError

if TYPE_CHECKING:
    from trainer_sink.export.dataset import Layout, Maker
    from trainer_sink.export.manifest import Manifest


async def run_export(target: Path, maker: Maker, layout: Layout, source: Source) -> None:
    """Export, and report. Raises CommandError for what an export refuses to do."""
    from trainer_sink.export.dataset import export_dataset

    existing, start, until = source.existing(), source.start(), source.until()
    with _explained():
        async with open_log(source.archive) as log:
            manifest = await export_dataset(log, target, maker, layout, existing=existing, start=start, until=until)
    run = manifest.runs[-1]
    if source.as_json:
        files = {name: facts["rows"] for name, facts in manifest.files.items()}
        print_json({"target": str(target), "kind": manifest.kind, "files": files, **run.to_json()})
        return
    _show(target, manifest)


def _show(target: Path, manifest: Manifest) -> None:
    counts = manifest.runs[-1].counts
    rows = ", ".join(f"{n} {split}" for split, n in sorted(counts.rows.items())) or "no"
    out.print(f"{target}: {rows} rows; {counts.exported} of {counts.sessions} sessions", markup=False)
    for title, reasons in (
        ("sessions left out", counts.refused),
        ("their conversations left out", counts.left_out),
        ("groups without a pair", counts.groups_refused),
        ("records that are no session's newest", counts.set_aside),
    ):
        if reasons:
            err.print(f"{title}: " + ", ".join(f"{n} {reason}" for reason, n in sorted(reasons.items())), markup=False)
    if counts.repaired:
        err.print(f"{counts.repaired} values replaced that JSON readers refuse", markup=False)


@contextmanager
def _explained() -> Iterator[None]:
    """What an export refuses to do, as a command says it."""
    from trainer_sink.errors import SinkError

    try:
        yield
    except SinkError as exc:
        raise CommandError(str(exc)) from exc
