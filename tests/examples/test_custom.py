"""The example agent and the example grader, without a stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from compose.cli.task_file import read_tasks
from examples.custom_evaluator.graders import steps
from schemas.records import Trace, Trajectory
from stage_workers.grading_process import GradedSession

EXAMPLES = Path(__file__).parents[2] / "examples"
DEFINITIONS = EXAMPLES / "custom_harness" / "definitions"


def calling(arguments: str) -> dict[str, Any]:
    """An assistant's message with one call of the agent's tool."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "write_file", "arguments": arguments}}],
    }


@pytest.fixture
def model() -> Iterator[HTTPServer]:
    """A server that gives the replies in its list `script`, and keeps what it was asked in `asked`."""

    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.server.asked.append(body)  # type: ignore[attr-defined]
            reply = self.server.script.pop(0)  # type: ignore[attr-defined]
            answer = json.dumps({"choices": [{"message": reply}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Model)
    server.asked, server.script = [], []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(model: Any, work: Path, *script: dict[str, Any], turns: int = 8) -> dict[str, Any]:
    """The agent's last line, with these replies."""
    model.script[:] = script
    definition = yaml.safe_load((DEFINITIONS / "tiny_agent.yaml").read_text())
    (work / "agent.py").write_text(definition["files"][0]["text"])
    env = {
        **os.environ,
        "AGENT_BASE_URL": f"http://127.0.0.1:{model.server_port}",
        "AGENT_KEY": "k",
        "AGENT_MODEL": "m",
        "AGENT_MAX_TURNS": str(turns),
    }
    done = subprocess.run(
        [sys.executable, "agent.py", "Write."],
        cwd=work,
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_the_agent_appends_and_its_tool_stays_in_its_directory(model: Any, tmp_path: Path) -> None:
    """A file is written, one outside is refused, broken arguments come back as a message; each call holds all before it."""
    work = tmp_path / "work"
    work.mkdir()
    good = calling('{"path": "a/notes.txt", "content": "heron"}')
    outside, broken = calling('{"path": "../x", "content": "y"}'), calling("{")
    told = run(model, work, good, outside, broken, {"role": "assistant", "content": "Done."})
    assert told == {"type": "result", "is_error": False, "said": "Done."}
    assert (work / "a" / "notes.txt").read_text() == "heron"
    assert not (tmp_path / "x").exists()
    said = [m["content"] for m in model.asked[-1]["messages"] if m["role"] == "tool"]
    assert said[0] == "wrote 5 characters to a/notes.txt"
    assert said[1].startswith("refused")
    assert said[2].startswith("error: JSONDecodeError")
    for earlier, later in zip(model.asked, model.asked[1:], strict=False):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"]


def test_the_agent_gives_up_after_its_turns(model: Any, tmp_path: Path) -> None:
    """Its verdict is an error then."""
    call = calling('{"path": "n", "content": "x"}')
    assert run(model, tmp_path, call, call, turns=2) == {"type": "result", "is_error": True, "said": "too many turns"}


def graded(*messages: dict[str, Any], status: str = "completed") -> list[float]:
    """What the grader says of calls that ended with these messages."""
    traces = [Trace(index=i, messages=[{"role": "user", "content": "hi"}, m]) for i, m in enumerate(messages)]
    session = GradedSession(session_id="s", trajectory=Trajectory(traces=traces), task={}, status=status, exit_code=0)
    return steps(session)


def test_the_grader_tells_useful_repeated_and_broken_calls_apart() -> None:
    """One reward for each trace, in order; a failed run earns nothing."""
    call, done = calling('{"path": "n"}'), {"role": "assistant", "content": "Done."}
    assert graded(call, call, calling("{"), done) == [1.0, 0.0, -0.5, 1.0]
    assert graded(call, done, status="failed") == [0.0, 0.0]


@pytest.mark.parametrize("file", ["custom_harness/task.yaml", "custom_evaluator/task.yaml", "two_trainers/tasks.yaml"])
def test_task_files_are_valid(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `polynya submit` would check them."""
    monkeypatch.setenv("POLYNYA_HARNESS_DIR", str(DEFINITIONS))
    assert read_tasks(str(EXAMPLES / file))
