"""`polynya session`: attached sessions, for agents that somebody starts by hand or with another launcher."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from compose.attached import AttachedSessions, SessionView
from compose.cli.connect import call_admin, open_bus
from compose.cli.console import async_command, out, print_json
from compose.cli.display import results_table
from compose.cli.status import resolve_session
from compose.cli.task_file import check_evaluator
from compose.errors import CommandError, usage
from compose.records_json import as_json as record_json
from compose.settings import load
from schemas.task import EvaluatorSpec

app = typer.Typer(help="Attached sessions: open, show, close.", no_args_is_help=True)


@app.command("open")
@async_command
async def open_(
    *,
    policy: Annotated[str | None, typer.Option(help="the policy that serves the session")] = None,
    instruction: Annotated[
        str, typer.Option(help="what the agent is asked to do (for the record)")
    ] = "attached session",
    harness: Annotated[str, typer.Option(help="the agent's name (for the record)")] = "external",
    deadline_s: Annotated[float, typer.Option(help="the lease ends by itself after this long")] = 3600.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Open a session and print its base URLs and its secret; it runs until `session close`."""
    settings = load()
    if deadline_s <= 0:
        raise usage(f"--deadline-s {deadline_s} must be more than 0")
    async with open_bus(settings) as bus:
        sessions = AttachedSessions(bus, lambda address, path, body: call_admin(settings, address, path, body))
        opened = await sessions.open(
            policy_id=policy or settings.policy_id, harness=harness, instruction=instruction, deadline_s=deadline_s
        )
    if as_json:
        print_json({"session_id": opened.session_id, "secret": opened.secret, "base_urls": opened.base_urls})
        return
    out.print(f"session {opened.session_id} is running; its API key is {opened.secret}")
    for dialect, url in opened.base_urls.items():
        out.print(f"  {dialect}: {url}")
    out.print(f"end it with: polynya session close {opened.session_id[:8]} --reward R")


@app.command("close")
@async_command
async def close(
    session: Annotated[str, typer.Argument(help="the session's id, or the start of it")],
    *,
    reward: Annotated[float | None, typer.Option(help="the reward that you give by hand")] = None,
    evaluator: Annotated[str | None, typer.Option(help="run this evaluator instead (here: command)")] = None,
    command: Annotated[str | None, typer.Option(help="the evaluator's command; runs in the current directory")] = None,
) -> None:
    """Seal a session and grade it; its trajectory is delivered like any other."""
    settings = load()
    if (reward is None) == (evaluator is None):
        raise usage("give exactly one of --reward and --evaluator", hint="polynya session close ID --reward 1")
    if evaluator == "command" and not command:
        raise usage("the evaluator `command` needs --command", hint="--evaluator command --command 'pytest -q'")
    spec = EvaluatorSpec(name=evaluator, options={"command": command} if command else {}) if evaluator else None
    if spec is not None:
        check_evaluator(spec)  # before the seal: a session is closed once
    async with open_bus(settings) as bus:
        session_id = await resolve_session(bus, session)
        sessions = AttachedSessions(bus, lambda address, path, body: call_admin(settings, address, path, body))
        result = await sessions.close(session_id, reward=reward, evaluator=spec)
    out.print(results_table([result]))


@app.command("artifacts")
@async_command
async def artifacts(
    session: Annotated[str, typer.Argument(help="the session's id, or the start of it")],
    *,
    to_: Annotated[Path | None, typer.Option("--out", help="write them into this directory")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """What a session's gradings kept: its patch, logs, the tests' output."""
    from bus import BlobMissingError
    from compose.grading.past import past_sessions

    async with open_bus(load()) as bus:
        (found,) = await past_sessions(bus, sessions=[await resolve_session(bus, session)])
        lost = []
        if to_ is not None:
            to_.mkdir(parents=True, exist_ok=True)
            for name, reference in found.artifacts.items():
                try:
                    (to_ / Path(name).name).write_bytes(await bus.blobs.get(reference.url))
                except BlobMissingError:
                    lost.append(name)
    if as_json:
        print_json({name: asdict(reference) for name, reference in found.artifacts.items()})
    else:
        for name, reference in sorted(found.artifacts.items()):
            gone = "  (gone)" if name in lost else ""
            out.print(f"{name:24} {reference.size_bytes:>10} bytes  {reference.url}{gone}", markup=False)
        if not found.artifacts:
            out.print("no artifacts")
    if lost:
        raise CommandError(f"{len(lost)} artifacts are gone: their time is over")


@app.command("show")
@async_command
async def show(
    session: Annotated[str, typer.Argument(help="the session's id, or the start of it")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """A session's calls, decoded and in order, and its trajectory so far."""
    settings = load()
    async with open_bus(settings) as bus:
        view = await SessionView.read(bus, await resolve_session(bus, session))
    if as_json:
        print_json(
            {
                "session_id": view.session_id,
                "stage": view.stage,
                "completions": [record_json(c) for c in view.completions],
                "trajectory": record_json(view.trajectory) if view.trajectory else None,
                "is_final": view.is_final,
            }
        )
        return
    out.print(f"session {view.session_id}: {view.stage}, {len(view.completions)} call(s)")
    for c in view.completions:
        sampled = len(c.output_ids) // 4
        out.print(
            f"  {c.writer}.{c.call_seq} {c.dialect} {c.state} prompt {c.prompt_len} sampled {sampled} {c.finish_reason}"
        )
    if view.trajectory:
        t = view.trajectory
        out.print(
            f"trajectory {t.trajectory_id}: {len(t.traces)} trace(s), {t.counts.calls} calls = {t.counts.trained} trained"
            f" + {t.counts.context} context + {sum(t.counts.untrainable.values())} untrainable"
        )
