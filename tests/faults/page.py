"""The page: written from findings, and read back so that a run can be compared with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import harnesses
from tests.faults.faults import FAULTS, Fault
from tests.faults.findings import Finding

PATH = Path(__file__).parents[2] / "docs" / "harness-faults.md"
TIMED = "waited"
"""The column that differs from run to run."""
COLUMNS = ("harness", "the call's record", "next", TIMED, "calls", "trained", "the run")

_HEAD = """# What harnesses do when the engine fails

Written by `make fault-table`, never by hand; `make test-faults` compares all but the column `waited` with what happens now.

Each harness runs a task of one or two shell commands and a closing sentence. The engine fails its second model call, once; after
that it behaves. Everything between is real: the harness, the capture proxy, the records.

* **the call's record**: state, error and status that the harness saw, or how the reply ended. A failed call is never trained.
* **next**: the following model call. *asks again*: the same request. *goes on*: the broken reply, or a part of it, stands in the
  history.
* **waited**: from the end of the failed call to the next one, measured on a machine with other work.
* **calls**, **trained**: model calls of the whole session, and those of them that are trained. `superseded`: an empty
  reply after which the harness asked again.
* **the run**: *done*: the commands ran and the closing sentence arrived. *ends as if done, but isn't*: the harness reports
  success, the task isn't solved. Then grading by the outcome tells, not the harness.
"""


Findings = Mapping[tuple[str, str], Finding]
"""By (harness, fault)."""


def write_page(findings: Findings) -> str:
    """The whole page."""
    names = list(dict.fromkeys(name for name, _ in findings))
    parts = [_HEAD, _table(("harness", "version", "API"), [_version(name) for name in names])]
    overview = [(fault.title, *(_short(findings[name, fault.name]) for name in names)) for fault in _met(findings)]
    parts += ["## In short\n", _table(("fault", *names), overview)]
    for fault in _met(findings):
        rows = [_row(name, findings[name, fault.name]) for name in names]
        parts += [f"## {fault.title[0].upper()}{fault.title[1:]}\n", _table(COLUMNS, rows)]
    return "\n".join(parts)


def comparable(page: str) -> list[str]:
    """The page's lines without what differs from run to run."""
    lines, at = [], -1
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            at = -1
        elif TIMED in cells:
            at = cells.index(TIMED)
        if at >= 0 and line.startswith("|"):
            del cells[at]
            lines.append(" | ".join(cells))
        else:
            lines.append(line)
    return lines


def _met(findings: Findings) -> list[Fault]:
    met = {name for _, name in findings}
    return [fault for fault in FAULTS if fault.name in met]


def _version(name: str) -> tuple[str, str, str]:
    adapter = harnesses.get(name)
    return name, adapter.version, adapter.dialect


def _short(found: Finding) -> str:
    return found.end if found.reaction == "no further call" else f"{found.reaction}; {found.end}"


def _row(name: str, found: Finding) -> tuple[str, ...]:
    waited = "" if found.waited_s is None else f"{found.waited_s:.1f} s"
    return name, found.record, found.reaction, waited, str(found.calls), found.trained, found.end


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"
