"""What the outermost boundary of the command line makes of errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka.errors import KafkaConnectionError
from typer.testing import CliRunner

from bus import TopicMissingError
from compose.cli import api
from compose.cli.main import _outage, app
from compose.errors import ExitCode
from compose.runtime_info import StackInfo


def test_outages_have_their_own_exit_code_and_a_next_step() -> None:
    """A Kafka that is away, and one on which our topics aren't, also where they are the cause of another error."""
    wrapped = RuntimeError("while reading")
    wrapped.__cause__ = KafkaConnectionError("no broker")
    for error, hint in ((TopicMissingError("rollout.tasks"), "polynya topics"), (wrapped, "polynya up")):
        known = _outage(error)
        assert known is not None
        assert known.code is ExitCode.DEPENDENCY_DOWN
        assert hint in known.hint


@pytest.mark.parametrize(
    ("module", "arguments"), [("compose.cli.main", ["api", "key"]), ("stream_processors.orchestrator.describe", [])]
)
def test_a_reader_that_has_gone_is_no_error(tmp_path: Path, module: str, arguments: list[str]) -> None:
    """`polynya … | head`: nothing is said of a broken pipe."""
    readable, writable = os.pipe()
    os.close(readable)
    try:
        command = [sys.executable, "-m", module, *arguments]
        env = {**os.environ, "POLYNYA_STATE_DIR": str(tmp_path), "PYTHONUNBUFFERED": ""}
        done = subprocess.run(command, stdout=writable, stderr=subprocess.PIPE, env=env, timeout=60, check=False)
    finally:
        os.close(writable)
    assert done.stderr == b""


def test_where_the_api_is_for_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One JSON document."""
    monkeypatch.setattr(api, "running_info", lambda _: StackInfo(api_url="http://127.0.0.1:7"))
    monkeypatch.setenv("POLYNYA_STATE_DIR", str(tmp_path))
    asked = CliRunner().invoke(app, ["api", "url", "--json"])
    assert json.loads(asked.stdout) == {"url": "http://127.0.0.1:7"}


def test_bugs_stay_bugs() -> None:
    """Their traceback is the only thing that helps."""
    assert _outage(KeyError("x")) is None
