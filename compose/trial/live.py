"""One live session of a harness against the running stack: opened, run here, graded, closed, and what came of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import harnesses
from bus import Bus
from compose.attached import AttachedSessions
from compose.controls import publish_control
from compose.errors import CommandError, dependency_down
from compose.trial.script import CONTENT, FILE, INSTRUCTION
from compose.trial.session import run_harness
from harnesses.forward import ForwardProxy
from schemas.records import ControlAction, Heartbeat

# A heartbeat that is older tells nothing of the proxy's present.
_FRESH_MS = 15_000
_TELL_EVERY_S = 15.0
_CANCEL_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A trial's verdict: whether the harness ended well and did the task, and what was captured of it."""

    session_id: str
    succeeded: bool
    why: str
    exit_code: int
    seconds: float
    reward: float
    calls: int
    trained: int
    untrainable: Mapping[str, int]
    turns_per_trace: tuple[int, ...]
    output_tail: str


async def try_harness(
    bus: Bus,
    sessions: AttachedSessions,
    adapter: harnesses.Adapter,
    options: Mapping[str, object],
    *,
    policy_id: str,
    instruction: str | None = None,
    timeout_s: float = 300.0,
    report: Callable[[str], None] = lambda _line: None,
) -> Outcome:
    """Runs one attached session; without an `instruction` it is the trial's task, and graded by the file that it asks for.

    Raises:
        CommandError: the harness can't be installed or launched, or the stack doesn't do its part.
    """
    forward = await _forward(bus) if options.get("capture") == "forward" else None
    try:  # before anything is opened: it may take minutes, or fail
        await asyncio.to_thread(harnesses.ensure_installed, adapter, progress=report)
    except harnesses.InstallError as exc:
        raise dependency_down(str(exc), hint=f"polynya harness install {adapter.name}") from exc
    opened = await sessions.open(
        policy_id=policy_id,
        harness=adapter.name,
        instruction=instruction or INSTRUCTION,
        deadline_s=timeout_s + 120,
    )
    report(f"session {opened.session_id}")
    urls = opened.base_urls
    if adapter.url_form == "key":
        urls = {name: url.replace(f"/s/{opened.secret}", "") for name, url in urls.items()}
    started = time.monotonic()
    ticking = asyncio.create_task(_tell_time(opened.session_id, timeout_s, report), name="try-progress")
    try:
        run = await run_harness(
            adapter,
            options,
            instruction=instruction or INSTRUCTION,
            urls=urls,
            secret=opened.secret,
            model=policy_id,
            forward=forward,
            timeout_s=timeout_s,
            report=report,
        )
    except asyncio.CancelledError:  # Ctrl-C: what nobody graded is nobody's to train
        reason = "its trial was interrupted"
        await publish_control(
            bus, ControlAction.CANCEL, "session", opened.session_id, reason, deadline_s=_CANCEL_WITHIN_S
        )
        raise
    except harnesses.HarnessError as exc:
        await sessions.close(opened.session_id, reward=0.0)
        raise CommandError(str(exc), hint=f"polynya harness show {adapter.name}") from exc
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
    why = run.verdict.error
    if run.result.timed_out:
        why = f"it was still running after {timeout_s:.0f} s"
    elif instruction is None and not why and run.files.get(FILE) != CONTENT.encode():
        why = f"it ended well but didn't write {FILE} as asked"
    scored = await sessions.close(opened.session_id, reward=0.0 if why else 1.0)
    trajectory = scored.trajectory
    return Outcome(
        session_id=opened.session_id,
        succeeded=not why,
        why=why.replace(opened.secret, "[secret]"),
        exit_code=run.result.exit_code,
        seconds=time.monotonic() - started,
        reward=0.0 if why else 1.0,
        calls=trajectory.counts.calls if trajectory else 0,
        trained=trajectory.counts.trained if trajectory else 0,
        untrainable=dict(trajectory.counts.untrainable) if trajectory else {},
        turns_per_trace=tuple(len(trace.turns) for trace in trajectory.traces) if trajectory else (),
        output_tail=run.result.tail().replace(opened.secret, "[secret]"),
    )


async def _tell_time(session_id: str, timeout_s: float, report: Callable[[str], None]) -> None:
    """A line every now and then: a harness says nothing here, and may work for minutes."""
    for n in itertools.count(1):
        await asyncio.sleep(_TELL_EVERY_S)
        report(
            f"running for {n * _TELL_EVERY_S:.0f} s, at most {timeout_s:.0f} s; "
            f"its calls: polynya session show {session_id[:8]}"
        )


async def _forward(bus: Bus) -> ForwardProxy:
    since_ms = int(time.time() * 1000) - _FRESH_MS
    async for delivery in bus.tail(["rollout.nodes"], start=since_ms, until_end=True):
        beat = delivery.decode() if delivery.value else None
        if isinstance(beat, Heartbeat) and (found := ForwardProxy.announced(beat.details)) is not None:
            return found
    raise CommandError(
        "no capture proxy has a forward listener", hint="start the proxy with one, or use --capture reverse"
    )
