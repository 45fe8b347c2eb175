"""Whether a writer may still push: its claim must be the last one on the timeline, by a reading that isn't old."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from bus.errors import BusUnavailableError
from trainer_sink.policies.errors import SupersededError
from trainer_sink.policies.reading import TimelineReader
from trainer_sink.policies.timeline import Claim, PolicyTimeline

MAX_AGE_S: Final = 0.5
"""An older reading doesn't count: a process that is stopped and continued sees the time that has passed, and reads again. Engines that are
pushed to at once share a reading; on a busy machine one takes tens of milliseconds."""

_TRIES: Final = 20


def boot_s() -> float:
    """Seconds since the machine came up; goes on while a process is stopped and, on Linux, while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Fence:
    """Compares a claim with the end of the timeline."""

    def __init__(
        self, reader: TimelineReader, policy_id: str, claim: Claim, *, clock: Callable[[], float] = boot_s
    ) -> None:
        self._reader = reader
        self._policy_id = policy_id
        self._claim = claim
        self._clock = clock
        self._read_s: float | None = None

    async def check(self) -> PolicyTimeline:
        """The policy's timeline to its end, read now. Raises SupersededError when another claim has come."""
        began_s = self._clock()  # what is acknowledged while we read may be missing
        timeline = (await self._reader.to_end()).of(self._policy_id)
        owner = timeline.owner
        if owner is not None and owner.epoch > self._claim.epoch:
            raise SupersededError(
                f"trainer {self._claim.trainer_id} (epoch {self._claim.epoch}) may no longer push policy "
                f"{self._policy_id}: trainer {owner.trainer_id} claimed it at epoch {owner.epoch}. Stop this trainer, or "
                "start it anew to claim the policy again",
                by=owner.trainer_id,
                epoch=owner.epoch,
            )
        self._read_s = began_s
        return timeline

    async def fresh(self) -> None:
        """Checks again where the last check is older than `MAX_AGE_S`; call it right before something that can't be taken back.

        Raises as `check`, and BusUnavailableError where no reading is quick enough to be believed.
        """
        for _ in range(_TRIES):
            if self._read_s is not None and self._clock() - self._read_s <= MAX_AGE_S:
                return
            await self.check()
        raise BusUnavailableError(
            f"reading the timeline of policy {self._policy_id} takes longer than {MAX_AGE_S} s each time: what it says may be old"
        )
