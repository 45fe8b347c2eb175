"""Each CLI through the forward proxy: its vendor's URL is unchanged, no base URL is set, and its calls are captured all the same."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

import harnesses
from compose.trial.script import CHECK, INSTRUCTION, STEPS
from schemas.records import CompletionDelivery, CompletionRecord, CompletionState, Rejection, Status
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(900)]

CLIS = [adapter.name for adapter in harnesses.list_harnesses() if adapter.has_forward and adapter.dialect != "any"]


def wire_of(cli: str) -> str:
    """The first wire of a CLI that can go through a forward proxy: its default one, if that can."""
    adapter = harnesses.get(cli)
    return next(name for name in adapter.dialects if adapter.wires[name].forward is not None)


def proxy_counts(stack: Stack) -> dict[str, int]:
    """What the proxy has counted."""
    request = urllib.request.Request(f"{stack.info.proxy_admin_address}/health")
    request.add_header("authorization", f"Bearer {(stack.state_dir / 'admin.key').read_text().strip()}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        counts: dict[str, int] = json.load(answer)["counts"]
    return counts


def task(cli: str, task_id: str) -> dict[str, Any]:
    """One session: parallel tool calls, one that fails, a file with unicode, a closing word."""
    wire = wire_of(cli)
    options = {"capture": "forward"} | ({} if wire == harnesses.get(cli).dialect else {"wire": wire})
    return {
        "task_id": task_id,
        "instruction": INSTRUCTION,
        "harness": {"name": cli, "options": options},
        "evaluator": {"name": "command", "options": {"command": CHECK}},
        "max_attempts": 1,
        "budgets": {"init_s": 300, "run_s": 280},
    }


@pytest.mark.parametrize("cli", CLIS)
async def test_a_cli_with_its_vendors_url_is_captured(stack: Stack, cli: str) -> None:
    """The expected number of calls and not one more, all delivered, a scored trajectory, and nothing tried to get out."""
    harnesses.ensure_installed(harnesses.get(cli))
    before = proxy_counts(stack).get("forward_calls", 0)
    body = json.dumps([task(cli, f"forward-{cli}")])
    stack.cli("submit", "-", "--json", "--wait", "--timeout-s", "500", stdin=body, timeout_s=560)
    [result] = await stack.results(f"forward-{cli}")
    assert (result.status, result.reward) == (Status.COMPLETED, 1.0), (result.error, stack.logs())
    records = [r for r in await stack.read("capture.completions") if getattr(r, "session_id", "") == result.session_id]
    calls = [r for r in records if isinstance(r, CompletionRecord)]
    assert [str(c.dialect) for c in calls] == [wire_of(cli)] * STEPS
    assert {c.state for c in calls} == {CompletionState.FINISHED}
    assert {d.completion_id for d in records if isinstance(d, CompletionDelivery) and d.delivered} == {
        c.completion_id for c in calls
    }
    counts = proxy_counts(stack)
    assert counts["forward_calls"] - before == len(calls)
    assert "upstream_prevented" not in counts
    assert result.trajectory is not None
    assert result.trajectory.counts.trainable_tokens > 0
    refused = {
        r.host
        for r in await stack.read("capture.rejections")
        if isinstance(r, Rejection) and r.session_id == result.session_id
    }
    assert not refused & {"api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com"}
