"""The simulated environment: the asking agent's sessions on the real CPU engine and the demo's model, one step of learning."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose.ablation import ARMS
from compose.ablation.simulated import GROUPS, SAMPLES, simulate, tool_result
from compose.demo.learning import model_dir


def test_tools_change_files_and_a_broken_call_is_text() -> None:
    """Written, read back, missing, broken."""
    files: dict[str, str] = {}
    write = '<tool_call>\n{"name": "write", "arguments": {"path": "a", "content": "heron"}}\n</tool_call><|im_end|>'
    assert tool_result(write, files) == "wrote a"
    assert files == {"a": "heron"}
    assert tool_result(write.replace("write", "read"), files) == "heron"
    assert tool_result(write.replace("write", "read").replace('"a"', '"b"'), files) == "error: no such file: b"
    assert tool_result("<tool_call>\n{broken\n</tool_call>", files) is None
    assert tool_result("Done.<|im_end|>", files) is None


@pytest.mark.component
async def test_a_step_takes_a_batch_of_traces_an_update(tmp_path: Path) -> None:
    """Both builders see the same first step, since weights, tasks and seeds are the same; per call there are more updates of it."""
    told = []
    flat, merged = [
        await simulate(
            arm, model_dir(), tmp_path / arm.builder, steps=1, sequences_per_update=8, seed=0, on_step=told.append
        )
        for arm in (ARMS[0], ARMS[2])
    ]
    assert flat.rewards == merged.rewards
    assert flat.calls_per_session == merged.calls_per_session
    assert flat.calls_per_session[0] > 2
    assert flat.trained_tokens == merged.trained_tokens
    assert merged.traces <= GROUPS * SAMPLES < flat.traces
    assert flat.trainer_updates > merged.trainer_updates > 0
    assert flat.computed_tokens > merged.computed_tokens
    assert 0 < flat.engine_busy_share < 1
    assert len(told) == 2
