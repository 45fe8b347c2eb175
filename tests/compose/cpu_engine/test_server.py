from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from compose.cpu_engine.server import main, parse_arguments


def test_options_become_settings() -> None:
    """Each option lands in its setting, and what isn't given keeps the setting's default."""
    settings = parse_arguments(
        [
            "--model",
            "m",
            "--port",
            "7",
            "--policy",
            "scripted:a.b:c",
            "--incremental-streaming-output",
            "--token-delay-ms",
            "2.5",
        ]
    )
    assert (str(settings.model), settings.port, settings.policy, settings.token_delay_ms) == (
        "m",
        7,
        "scripted:a.b:c",
        2.5,
    )
    assert settings.incremental_streaming_output
    assert (settings.host, settings.threads, settings.weight_version) == ("127.0.0.1", 1, "default")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "m", "--policy", "mod:fn"],
        ["--model", "m", "--port", "70000"],
        [],
        ["--model", "m", "--threads", "0"],
    ],
)
def test_bad_options_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A usage error names the option on stderr."""
    with pytest.raises(SystemExit) as stopped:
        parse_arguments(arguments)
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_model_that_is_not_there_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the directory."""
    assert main(["--model", str(tmp_path / "none")]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_a_policy_that_is_not_there_exits_with_1(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the policy."""
    assert main(["--model", str(checkpoint), "--policy", "scripted:no_such_module:f"]) == 1
    assert "scripted:no_such_module:f" in capsys.readouterr().err


@pytest.mark.timeout(300)  # a new interpreter imports torch: a quarter of a minute on a quiet machine
def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path, checkpoint: Path) -> None:
    """The port file and the ready line come when requests are served; a policy of the working directory is found; SIGTERM ends it with 0."""
    (tmp_path / "my_policy.py").write_text("def reply(prompt, request):\n    return 'from the working directory'\n")
    port_file = tmp_path / "port"
    command = [
        sys.executable,
        "-m",
        "compose.cpu_engine",
        "--model",
        str(checkpoint),
        "--policy",
        "scripted:my_policy:reply",
    ]
    with subprocess.Popen(
        [*command, "--port-file", str(port_file)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            port = int(port_file.read_text())
            assert line.startswith(f"engine ready http://127.0.0.1:{port} ")
            request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", data=b'{"text": "a"}')
            with urllib.request.urlopen(request, timeout=30) as reply:
                assert b"from the working directory" in reply.read()
            begun = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
            assert time.monotonic() - begun < 10
        finally:
            process.kill()
