"""One SGLang server as a child process: its options, its health, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import aiohttp
import structlog

from compose.sglang.environment import Device, serving_environment
from compose.supervisor import die_with_parent, tail_of

log = structlog.get_logger(__name__)

START_LIMIT_S: Final[dict[Device, float]] = {"cpu": 900.0, "cuda": 1800.0}
"""Seconds of a quiet machine are minutes of a busy one; a large model takes its time to be read."""
STOP_LIMIT_S: Final = 30.0
POLL_S: Final = 0.5
LINE_CHARS: Final = 300  # SGLang prints all of its options in one line

_CPU_OPTIONS: Final = (
    *("--device", "cpu", "--dtype", "float32"),
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "xgrammar", "--constrained-json-disable-any-whitespace"),
    *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
    *("--max-total-tokens", "65536", "--max-running-requests", "32", "--mem-fraction-static", "0.5"),
)
"""Backends that need no kernel package, and a cache of a size that doesn't depend on what memory is free now."""
_COMMON_OPTIONS: Final = ("--enable-cache-report", "--incremental-streaming-output")


class ServerFailedError(RuntimeError):
    """The server didn't come up, or ended; the message has the end of its log."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def server_command(
    python: Path, *, model: Path, device: Device, host: str, port: int, name: str, extra: Sequence[str] = ()
) -> list[str]:
    """The argv. What `extra` says overrides the same option before it, as SGLang reads it."""
    options = [*_COMMON_OPTIONS, *(_CPU_OPTIONS if device == "cpu" else ())]
    return [
        str(python), "-m", "sglang.launch_server", "--model-path", str(model), "--served-model-name", name,
        "--host", host, "--port", str(port), *options, *extra,
    ]  # fmt: skip


class SglangServer:
    """A running server. Use as `async with`; it ends with its parent, however that ends."""

    def __init__(
        self,
        python: Path,
        *,
        model: Path,
        device: Device,
        host: str = "127.0.0.1",
        port: int = 0,
        name: str = "",
        extra: Sequence[str] = (),
        log_file: Path | None = None,
        env: Mapping[str, str] | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._port = port or free_port(host)
        self._device: Device = device
        self._command = server_command(
            python, model=model, device=device, host=host, port=self._port, name=name or model.name, extra=extra
        )
        self._env = {**os.environ, **serving_environment(device), **(env or {})}
        self._log_file = log_file
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self.url = f"http://{host}:{self._port}"

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:  # also a cancelled start leaves no server behind
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _start(self) -> None:
        with contextlib.ExitStack() as stack:
            output = None
            if self._log_file is not None:
                self._log_file.parent.mkdir(parents=True, exist_ok=True)
                output = stack.enter_context(self._log_file.open("ab"))
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                env=self._env, start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip
        self._report(f"SGLang is starting at {self.url} (pid {self._process.pid})")
        limit_s = START_LIMIT_S[self._device]
        try:
            async with asyncio.timeout(limit_s), aiohttp.ClientSession() as http:
                while not await self._is_healthy(http):
                    if self._process.returncode is not None:
                        raise ServerFailedError(f"SGLang ended with {self._process.returncode}:\n{self._tail()}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ServerFailedError(f"SGLang isn't up after {limit_s:.0f} s:\n{self._tail()}") from None

    async def _is_healthy(self, http: aiohttp.ClientSession) -> bool:
        try:
            async with http.get(f"{self.url}/health", timeout=aiohttp.ClientTimeout(total=25)) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    def _tail(self) -> str:
        if self._log_file is None:
            return "(its output is above)"
        return "\n".join(line[:LINE_CHARS] for line in tail_of(self._log_file).splitlines())

    async def wait(self) -> int:
        """Waits for its end; its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """Ends it, and what it has started."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_LIMIT_S)
            except TimeoutError:
                log.warning("sglang.killed", pid=process.pid, reason="it didn't stop in time")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers share its group
        await process.wait()
