"""One live session with a harness: what happens around the run, over stand-ins for the stack and for the harness."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import harnesses
from bus.memory import MemoryBus
from compose.errors import CommandError, ExitCode
from compose.trial import live
from harnesses.errors import RegistryUnreachableError
from schemas.records import Control, ControlAction


class Sessions:
    """Attached sessions that only note what was asked of them."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def open(self, **_: object) -> Any:
        self.asked.append("open")
        return SimpleNamespace(session_id="0123456789", secret="s3cret", base_urls={})

    async def close(self, session_id: str, *, reward: float) -> Any:
        self.asked.append(f"close {session_id} {reward}")
        return SimpleNamespace(trajectory=None)


async def try_pi(bus: MemoryBus, sessions: Sessions, said: list[str]) -> live.Outcome:
    return await live.try_harness(
        bus,
        sessions,  # type: ignore[arg-type]
        harnesses.get("pi"),
        {},
        policy_id="default",
        instruction="Say hello.",
        report=said.append,
    )


async def test_what_cannot_be_installed_opens_no_session(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that is away costs no session that then waits for its deadline; the exit code says what it is."""

    def away(*_: object, **__: object) -> None:
        raise RegistryUnreachableError("the npm registry can't be reached")

    monkeypatch.setattr(harnesses, "ensure_installed", away)
    sessions = Sessions()
    with pytest.raises(CommandError, match="can't be reached") as caught:
        await try_pi(memory_bus, sessions, [])
    assert (caught.value.code, caught.value.hint) == (ExitCode.DEPENDENCY_DOWN, "polynya harness install pi")
    assert sessions.asked == []


async def test_a_long_run_says_that_it_runs(memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness says nothing here for minutes; the line names the command that shows its calls. It ends with the run."""
    told = asyncio.Event()
    said: list[str] = []

    class Said(list[str]):
        def append(self, line: str) -> None:
            said.append(line)
            if line.startswith("running for"):
                told.set()

    async def run(*_: object, **__: object) -> Any:
        await asyncio.wait_for(told.wait(), 10)
        result = SimpleNamespace(timed_out=False, exit_code=0, tail=lambda: "")
        return SimpleNamespace(verdict=SimpleNamespace(error=""), result=result, files={})

    monkeypatch.setattr(harnesses, "ensure_installed", lambda *_, **__: None)
    monkeypatch.setattr(live, "run_harness", run)
    monkeypatch.setattr(live, "_TELL_EVERY_S", 0.01)
    sessions = Sessions()
    outcome = await try_pi(memory_bus, sessions, Said())
    assert outcome.succeeded
    assert any(line.endswith("polynya session show 01234567") for line in said)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "try-progress"]
    assert sessions.asked == ["open", "close 0123456789 1.0"]


async def test_an_interrupted_run_is_cancelled_not_graded(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody judged it: no trainer may take it for a failure, and it doesn't run until its deadline."""
    begun = asyncio.Event()

    async def run(*_: object, **__: object) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(harnesses, "ensure_installed", lambda *_, **__: None)
    monkeypatch.setattr(live, "run_harness", run)
    sessions = Sessions()
    trying = asyncio.create_task(try_pi(memory_bus, sessions, []))
    await asyncio.wait_for(begun.wait(), 10)
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    assert sessions.asked == ["open"]
    (delivery,) = memory_bus.records("rollout.control")
    control = delivery.decode()
    assert isinstance(control, Control)
    assert (control.action, control.target_kind, control.target) == (ControlAction.CANCEL, "session", "0123456789")
