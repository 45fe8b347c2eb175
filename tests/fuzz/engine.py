"""The fake engine in a process of its own, so that the proxy has a core for itself: `python -m tests.fuzz.engine` prints its URL."""

from __future__ import annotations

import asyncio
import sys
from itertools import count

from tests.capture_proxy.fakes import FakeEngine, tool_call

REPLIES = (
    "Hi.",
    "漢🦊ö",
    tool_call("bash", {"command": "ls"}),
    "<think>\nhm\n</think>\nYes.",
    "word " * 80,
    '<tool_call>\n{"name": 1',
    "",
)


async def main() -> None:
    """Serves until its standard input ends."""
    engine, numbers = FakeEngine(), count()
    engine.script = lambda *_: REPLIES[next(numbers) % len(REPLIES)]
    engine.requests = engine.request_headers = Forgetful()
    async with engine.serving() as serving:
        sys.stdout.write(serving.url + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


class Forgetful(list):  # type: ignore[type-arg]
    """Remembers nothing: thousands of requests come."""

    def append(self, item: object) -> None:
        del item


if __name__ == "__main__":
    asyncio.run(main())
