"""`make gpu-check`: a bounded run on a machine with a GPU, from nothing, and a table of what was found.

Serves a model with SGLang (the directory that is named, else the largest real one in the cache, else a tiny one made here), runs the
conformance suite against it, one session of the real Pi CLI through a whole stack, and a weight update with its version on the next
reply. Exit codes: 0 all passed, 1 something failed, 3 no GPU or no SGLang.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from compose.cpu_engine.tiny_model import TinyModelError, cache_root, ensure_tiny_model
from compose.sglang import EnvironmentFailedError, SglangServer, ensure_environment, find_device
from compose.sglang.server import ServerFailedError

DEPENDENCY_DOWN = 3
SUITE_LIMIT_S = 600.0
SESSION_LIMIT_S = 420.0
HERE = Path(__file__).parent
TINY_WIDTH = 64  # kernels for GPUs want heads of at least 64
BF16_TOLERANCE = "5e-2"
TASK = """
instruction: Say hello.
harness: {name: pi}
num_samples: 1
max_attempts: 1
evaluator: {name: session_completed}
budgets: {init_s: 120, run_s: 120}
sampling: {max_tokens: 200}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One check: whether it passed, how long it took, and what is worth saying."""

    name: str
    passed: bool
    seconds: float
    words: str


def say(line: str) -> None:
    """Progress, for a person who waits."""
    sys.stderr.write(f"gpu-check: {line}\n")
    sys.stderr.flush()


def find_model(named: str | None) -> tuple[Path, bool]:
    """The model to serve, and whether it is a real one."""
    if named:
        return Path(named).absolute(), True
    real = [
        path.parent
        for path in (cache_root() / "models").glob("*/config.json")
        if not path.parent.name.startswith("tiny-")
    ]
    weighed = [(sum(f.stat().st_size for f in path.glob("*.safetensors")), path) for path in real]
    if weighed and max(weighed)[0]:
        return max(weighed)[1], True
    return ensure_tiny_model(width=TINY_WIDTH), False


async def timed(name: str, check: Callable[[], Awaitable[str]]) -> Row:
    """A row of a check; what it raises is what it failed with."""
    say(f"{name} …")
    started = time.monotonic()
    try:
        words, passed = await check(), True
    except Exception as error:  # a check's boundary: the others still run, and the table says what this one hit
        words, passed = f"{type(error).__name__}: {error}"[:300], False
    return Row(name, passed, time.monotonic() - started, words)


async def run(command: list[str], env: dict[str, str], limit_s: float) -> str:
    """A program's output; raises with its end when it fails or takes too long."""
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **env}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), limit_s)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise RuntimeError(f"{command[-1]} took longer than {limit_s:.0f} s") from None
    text = output.decode(errors="replace")
    if process.returncode != 0:
        raise RuntimeError(" | ".join(text.strip().splitlines()[-4:]))
    return text


async def conformance(url: str, model: Path, other: Path) -> str:
    """The whole suite. Tolerances are bf16's."""
    env = {
        "POLYNYA_CONFORMANCE_URL": url,
        "POLYNYA_CONFORMANCE_KIND": "sglang",
        "POLYNYA_CONFORMANCE_WEIGHTS": f"{model}:{other}",
        "POLYNYA_CONFORMANCE_TOLERANCE": BF16_TOLERANCE,
    }
    text = await run([sys.executable, "-m", "pytest", "-q", str(HERE)], env, SUITE_LIMIT_S)
    return text.strip().splitlines()[-1]


async def pi_session(url: str, model: Path, state_dir: Path) -> str:
    """One task with the real Pi through Kafka, proxy, processors and a worker; its calls must be trainable."""
    env = {"POLYNYA_STATE_DIR": str(state_dir)}
    polynya = [sys.executable, "-m", "compose.cli.main"]
    task = state_dir / "task.yaml"
    task.parent.mkdir(parents=True, exist_ok=True)
    task.write_text(TASK)
    await run([*polynya, "harness", "install", "pi"], env, SESSION_LIMIT_S)
    await run([*polynya, "up", "--detach", "--engine-url", url, "--model", str(model)], env, SESSION_LIMIT_S)
    try:
        await run([*polynya, "submit", str(task), "--wait"], env, SESSION_LIMIT_S)
        text = await run([*polynya, "tail", "capture.completions", "--decode"], env, SESSION_LIMIT_S)
    finally:
        await run([*polynya, "down"], env, SESSION_LIMIT_S)
    calls, trainable = count_calls(text)
    if not trainable:
        raise RuntimeError(f"no trainable call among {calls}")
    return f"{calls} calls, {trainable} trainable"


def count_calls(text: str) -> tuple[int, int]:
    """Calls, and those that can be trained, among the lines that `polynya tail capture.completions --decode` prints."""
    records = [json.loads(line).get("record") or {} for line in text.splitlines() if line.startswith("{")]
    calls = [record for record in records if "call_seq" in record and "output_ids" in record]
    return len(calls), sum(bool(call.get("trainable")) for call in calls)


async def weight_update(url: str, model: Path) -> str:
    """The same weights under a new version, in place; the next reply must name it."""
    body = {"model_path": str(model), "weight_version": "gpu-check-1", "flush_cache": True}
    ask = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
    started = time.monotonic()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as http:
        async with http.post(f"{url}/update_weights_from_disk", json=body) as answer:
            told: dict[str, Any] = await answer.json()
            if not told.get("success"):
                raise RuntimeError(str(told))
        took = time.monotonic() - started
        async with http.post(f"{url}/generate", json=ask) as answer:
            spans = (await answer.json())["meta_info"]["weight_versions"]
    if [span["version"] for span in spans] != ["gpu-check-1"]:
        raise RuntimeError(f"the next reply names {spans}")
    return f"{took:.2f} s"


def show(rows: list[Row]) -> None:
    """The table, on stdout."""
    width = max(len(row.name) for row in rows)
    for row in rows:
        print(f"{row.name:{width}}  {'passed' if row.passed else 'FAILED'}  {row.seconds:7.1f} s  {row.words}")


async def main(named: str | None) -> int:
    """Exit code."""
    if find_device() != "cuda":
        say(
            "no NVIDIA GPU is seen here (nvidia-smi -L); on a CPU the real SGLang is checked by: make conformance-sglang"
        )
        return DEPENDENCY_DOWN
    try:
        model, is_real = await asyncio.to_thread(find_model, named)
        other = model if is_real else await asyncio.to_thread(ensure_tiny_model, seed=1, width=TINY_WIDTH)
        python = await asyncio.to_thread(ensure_environment, "cuda", say)
        with TemporaryDirectory() as scratch:
            server = SglangServer(python, model=model, device="cuda", log_file=Path(scratch) / "sglang.log", report=say)
            started = time.monotonic()
            async with server:
                rows = [Row(f"serve {model.name}", True, time.monotonic() - started, server.url)]
                rows.append(await timed("conformance", lambda: conformance(server.url, model, other)))
                rows.append(
                    await timed("one Pi session", lambda: pi_session(server.url, model, Path(scratch) / "stack"))
                )
                rows.append(await timed("weight update", lambda: weight_update(server.url, model)))
    except (EnvironmentFailedError, ServerFailedError, TinyModelError) as error:
        say(str(error))
        return DEPENDENCY_DOWN
    show(rows)
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None)))
