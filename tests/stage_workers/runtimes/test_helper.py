"""The namespace helper: one process for many requests, begun anew when it ended, gone with its owner."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stage_workers.runtimes import RuntimeFault
from stage_workers.runtimes.helper import NamespaceHelper
from stage_workers.runtimes.network import NetworkSpace


@pytest.fixture
async def helper() -> AsyncIterator[NamespaceHelper]:
    """One that may make namespaces here."""
    made = NamespaceHelper()
    try:
        try:
            (await NetworkSpace.new(made)).close()
        except RuntimeFault as fault:
            pytest.skip(str(fault))
        yield made
    finally:
        made.close()


def _pid(helper: NamespaceHelper) -> int:
    assert helper._process is not None
    return helper._process.pid


async def test_one_process_serves_many(helper: NamespaceHelper) -> None:
    """Each namespace is another one, listeners in them don't meet, and all come from the same process."""
    pid = _pid(helper)
    spaces = await asyncio.gather(*(NetworkSpace.new(helper) for _ in range(3)))
    listeners = [await space.listen() for space in spaces]
    try:
        assert len({os.fstat(space.net_fd).st_ino for space in spaces}) == 3
        assert _pid(helper) == pid
        for listener in listeners:
            # Not in our network: nobody is at that address here, or somebody else.
            assert listener.sock.getsockname()[0] == "127.0.0.1"
            with socket.socket() as probe:
                probe.settimeout(5)
                assert probe.connect_ex(listener.sock.getsockname()) != 0
    finally:
        for listener in listeners:
            listener.sock.close()
        for space in spaces:
            space.close()


async def test_what_cannot_be_done_is_said_and_the_next_is_done(helper: NamespaceHelper) -> None:
    """A descriptor that is no namespace is a fault with the system's words; the same helper goes on."""
    pid = _pid(helper)
    with Path(os.devnull).open("rb") as file, pytest.raises(RuntimeFault, match="network namespace can't be entered"):
        await helper.ask("listen", [file.fileno()])
    (await NetworkSpace.new(helper)).close()
    assert _pid(helper) == pid


async def test_a_dead_helper_is_replaced(helper: NamespaceHelper) -> None:
    """It was killed: another one is begun."""
    os.kill(_pid(helper), signal.SIGKILL)
    assert helper._process is not None
    helper._process.wait(10)
    (await NetworkSpace.new(helper)).close()


async def test_a_frozen_helper_is_given_up(helper: NamespaceHelper, monkeypatch: pytest.MonkeyPatch) -> None:
    """It doesn't answer in time: a fault, its end, and a new one for the next request."""
    pid = _pid(helper)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr("stage_workers.runtimes.helper._ANSWER_S", 0.2)
    with pytest.raises(RuntimeFault, match="hung"):
        await helper.ask("new")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    monkeypatch.undo()
    (await NetworkSpace.new(helper)).close()


async def test_a_cancelled_request_leaves_no_answer_behind(helper: NamespaceHelper) -> None:
    """What nobody waits for any more isn't taken for the answer to the next request."""
    os.kill(_pid(helper), signal.SIGSTOP)
    asking = asyncio.create_task(helper.ask("new"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    space = await NetworkSpace.new(helper)
    (await space.listen()).sock.close()
    space.close()


async def test_it_ends_with_its_owner() -> None:
    """Nobody holds it any more: its process is gone."""
    helper = NamespaceHelper()
    helper._begun()
    pid = _pid(helper)
    del helper
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
