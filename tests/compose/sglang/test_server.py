"""The child process that SGLang is: its options, its health, its end, shown on a small program that behaves like it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from compose.runtime_info import is_alive
from compose.sglang.server import ServerFailedError, SglangServer, server_command

HEALTHY = """
import http.server, os, pathlib, sys
pathlib.Path(os.environ["PIDS"]).write_text(str(os.getpid()))
port = int(sys.argv[sys.argv.index("--port") + 1])
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(503 if Handler.asked < 3 else 200)
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def fake_python(tmp_path: Path, script: str) -> Path:
    """An executable that takes SGLang's command line and runs a script instead."""
    (tmp_path / "script.py").write_text(script)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/script.py "$@"\n')
    python.chmod(0o755)
    return python


def test_the_command_line() -> None:
    """A CPU gets the backends that need no kernels, a GPU SGLang's own; what a person adds comes last, so that it wins."""
    options = {"model": Path("/m/x"), "host": "h", "port": 5, "name": "n"}
    on_cpu = server_command(Path("/p"), device="cpu", extra=["--dtype", "bfloat16"], **options)  # type: ignore[arg-type]
    assert on_cpu[:9] == [
        "/p",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/m/x",
        "--served-model-name",
        "n",
        "--host",
        "h",
    ]
    assert on_cpu[on_cpu.index("--attention-backend") + 1] == "torch_native"
    assert on_cpu[-2:] == ["--dtype", "bfloat16"]
    on_gpu = server_command(Path("/p"), device="cuda", **options)  # type: ignore[arg-type]
    assert "--attention-backend" not in on_gpu
    assert "--incremental-streaming-output" in on_gpu


@pytest.mark.component
async def test_it_is_up_when_it_is_healthy_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """503 means not yet; at the end the process is gone."""
    pids = tmp_path / "pids"
    python = fake_python(tmp_path, HEALTHY)
    async with asyncio.timeout(60):
        async with SglangServer(
            python, model=tmp_path, device="cpu", log_file=tmp_path / "log", env={"PIDS": str(pids)}
        ) as server:
            assert server.url.startswith("http://127.0.0.1:")
            pid = int(pids.read_text())
            assert is_alive(pid)
    assert not is_alive(pid)


@pytest.mark.component
async def test_one_that_ends_at_once_says_why(tmp_path: Path) -> None:
    """The end of its log is in the error, in lines that a person can read."""
    python = fake_python(tmp_path, 'print("x" * 5000); raise SystemExit("no such model")')
    with pytest.raises(ServerFailedError, match="no such model") as raised:
        async with asyncio.timeout(60), SglangServer(python, model=tmp_path, device="cpu", log_file=tmp_path / "log"):
            pass
    assert len(str(raised.value)) < 1000
