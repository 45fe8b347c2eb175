"""Recording a harness' wire: one run of the trial against our own endpoint, summarised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

import harnesses
from compose.trial.recorder import Exchange, recording
from compose.trial.script import INSTRUCTION
from compose.trial.session import MODEL, Run, run_harness
from harnesses.wire_summary import Seen, summarise

SECRET = "the-secret.of_this~trial"  # noqa: S105  # opens nothing but our own recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The run, every request of it, and the summary of its wire."""

    run: Run
    exchanges: list[Exchange]
    summary: dict[str, Any]


async def record(
    adapter: harnesses.Adapter,
    wire: str,
    *,
    options: Mapping[str, object] | None = None,
    report: Callable[[str], None] = lambda _line: None,
    status: int = 200,
    timeout_s: float = 300.0,
) -> Recording:
    """Runs the trial on one wire; with another `status` every model call is refused with it.

    Raises:
        HarnessError: the harness can't be installed or launched.
    """
    chosen = {"wire": wire} if "wire" in adapter.options else {}
    async with recording(status) as (address, recorder):
        run = await run_harness(
            adapter,
            {**chosen, **(options or {})},
            instruction=INSTRUCTION,
            urls=harnesses.base_urls(address, SECRET, adapter.url_form),
            secret=SECRET,
            report=report,
            timeout_s=timeout_s,
        )
    seen = [
        Seen(method=e.method, path=e.path, headers=frozenset(e.headers), body=e.body, answer=e.answer)
        for e in recorder.exchanges
    ]
    return Recording(run=run, exchanges=recorder.exchanges, summary=summarise(seen, secret=SECRET, model=MODEL))


def as_file(adapter: harnesses.Adapter, wires: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The content of `wires/<harness>.json`."""
    tree = {"harness": adapter.name, "version": adapter.version, "wires": dict(sorted(wires.items()))}
    return orjson.dumps(tree, option=orjson.OPT_INDENT_2) + b"\n"
