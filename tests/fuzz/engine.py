"""The fake engine in a process of its own, so that the proxy has a core for itself: `python -m tests.fuzz.engine` prints its URL."""

from __future__ import annotations

import asyncio
import sys
from itertools import count

from aiohttp import web

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


class Thoughtful(FakeEngine):
    """Takes a moment over every third request, so that clients leave in the middle of calls too."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = count()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if next(self._asked) % 3 == 0:
            await asyncio.sleep(0.1)
        return await super()._generate(request)


async def main() -> None:
    """Serves until its standard input ends."""
    engine, numbers = Thoughtful(), count()
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
