"""A scripted solver of the small repository's task, for Pi's tools, and the tasks that it is given."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from compose.demo.policy import ASSISTANT, PI_TOOLS, tool_call
from tests.stage_workers.evaluators.repository import INSTANCE, RIGHT, WRONG, setup_step

MARK: Final = "mend-shapes="
_FIX = re.compile(rf"{MARK}(\w+)")

TEST_COMMAND: Final = f"{sys.executable} -m pytest -p no:cacheprovider -rA tests/test_shapes.py"


def reply(prompt: str) -> str:
    """Looks at the source, writes another (right or wrong, or nothing at all), and says so."""
    found = _FIX.search(prompt)
    kind = found.group(1) if found else "none"
    write, bash = PI_TOOLS
    turn = prompt.count(ASSISTANT) - 1
    if turn == 0:
        return "I look at it.\n" + tool_call(bash, {"command": "cat shapes.py"})
    if turn == 1 and kind in {"right", "wrong"}:
        content = RIGHT if kind == "right" else WRONG
        return "I mend it.\n" + tool_call(write, {"path": "shapes.py", "content": content})
    return "That is all."


def task(kind: str, task_id: str, **options: Any) -> dict[str, Any]:
    """A SWE-style task for Pi, in a place of its own on this machine, graded in another."""
    return {
        "task_id": task_id,
        "instruction": f"area() in shapes.py is wrong. Mend it. {MARK}{kind}",
        "harness": {"name": "pi"},
        "prepare": [setup_step()],
        "evaluator": {
            "name": "swebench",
            "options": {"instance": INSTANCE, "repo_dir": ".", "test_command": TEST_COMMAND, **options},
        },
        "budgets": {"run_s": 120, "evaluate_s": 120},
        "metadata": {"repo": INSTANCE["repo"]},
    }
