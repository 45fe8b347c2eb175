"""The run's weights on their way to the policy's engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog

from bus import Bus
from trainer_sink.policies import PolicyWriter, PushFailedError
from trainer_sink.reference.settings import GrpoSettings

_log = structlog.get_logger(__name__)

UNPUBLISHED: Final = "0"
"""What weights are called that no trainer has pushed: version 0 of the policy."""
RETRY_S: Final = 1.0
"""Before a push that an engine didn't take is tried again; doubled each time."""


class Pushes:
    """The version that the engines have, and how they get the next one. Without a writer nothing is pushed, and the version stays."""

    def __init__(self, writer: PolicyWriter | None, *, attempts: int) -> None:
        self.version = UNPUBLISHED if writer is None else writer.version
        """The newest one that was published for the policy."""
        self._writer = writer
        self._attempts = attempts

    async def push(self, path: Path, digest: str) -> None:
        """Load a checkpoint into every engine as the next version; `digest` is that of its weights.

        Raises PushFailedError when an engine didn't take it at any attempt, and what `PolicyWriter.push` raises besides.
        """
        if self._writer is None:
            return
        for attempt in range(1, self._attempts + 1):
            try:
                self.version = await self._writer.push(path, weights_digest=digest)
            except PushFailedError as error:
                if attempt == self._attempts:
                    raise
                _log.warning("push.failed", attempt=attempt, error=str(error))
                await asyncio.sleep(RETRY_S * 2 ** (attempt - 1))
            else:
                return


@asynccontextmanager
async def pushing(bus: Bus, settings: GrpoSettings) -> AsyncIterator[Pushes]:
    """Claims the policy for the block's time, where the settings say that weights are pushed."""
    if not settings.push:
        yield Pushes(None, attempts=settings.push_attempts)
        return
    key = settings.engine_key()
    async with PolicyWriter(
        bus, settings.policy_id, settings.trainer_id, engines=settings.engines, api_key=key
    ) as writer:
        yield Pushes(writer, attempts=settings.push_attempts)
