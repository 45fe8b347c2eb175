"""The conformance suite against the real SGLang, from nothing: install it into the cache, serve the tiny model, run, stop.

`make conformance-sglang`; arguments go to pytest. Without a GPU it runs on the CPU, in float32.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from compose.cpu_engine.tiny_model import TinyModelError, ensure_tiny_model
from compose.sglang import EnvironmentFailedError, SglangServer, ensure_environment
from compose.sglang.server import ServerFailedError

DEPENDENCY_DOWN = 3
SUITE_LIMIT_S = 1500.0
HERE = Path(__file__).parent


def say(line: str) -> None:
    """Progress, for a person who waits."""
    sys.stderr.write(f"conformance: {line}\n")
    sys.stderr.flush()


async def main(arguments: list[str]) -> int:
    """Exit code: pytest's, or 3 when SGLang can't be had or doesn't come up."""
    try:
        weights = [await asyncio.to_thread(ensure_tiny_model, seed=seed) for seed in (0, 1)]
        python = await asyncio.to_thread(ensure_environment, "cpu", say)
        with TemporaryDirectory() as scratch:
            log_file = Path(scratch) / "sglang.log"
            async with SglangServer(python, model=weights[0], device="cpu", log_file=log_file, report=say) as server:
                return await run_suite(server.url, [str(path) for path in weights], arguments)
    except (EnvironmentFailedError, ServerFailedError, TinyModelError) as error:
        say(f"{error}")
        say("then type: make conformance-sglang")
        return DEPENDENCY_DOWN


async def run_suite(url: str, weights: list[str], arguments: list[str]) -> int:
    """Pytest in a process of its own, bounded."""
    env = {
        **os.environ,
        "POLYNYA_CONFORMANCE_URL": url,
        "POLYNYA_CONFORMANCE_KIND": "sglang",
        "POLYNYA_CONFORMANCE_WEIGHTS": ":".join(weights),
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "pytest", "-q", str(HERE), *arguments, env=env)
    try:
        return await asyncio.wait_for(process.wait(), SUITE_LIMIT_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        say(f"the suite took longer than {SUITE_LIMIT_S:.0f} s")
        return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
