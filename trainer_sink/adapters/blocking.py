"""Groups for trainers that aren't asynchronous (TRL, slime): the consumer lives in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Self, TypeVar

from bus import Bus
from schemas.records import BatchConsumed
from trainer_sink.consumer import GroupConsumer
from trainer_sink.errors import SinkError, SinkStateError
from trainer_sink.groups import Group

T = TypeVar("T")

# Beside a consumer's own deadlines, so that a trainer never waits for ever on a thread that is gone.
CALL_WITHIN_S = 120.0


class NoGroupsError(SinkError):
    """Not enough groups came in time, or the log has none left."""


class BlockingGroups:
    """`GroupConsumer` with plain calls, from any one thread: `with BlockingGroups(lambda: connect(settings), "trl") as groups: …`.

    `open_bus` makes the bus inside the thread; the other arguments are `GroupConsumer`'s. What those calls raise, these raise.
    """

    def __init__(
        self, open_bus: Callable[[], AbstractAsyncContextManager[Bus]], trainer_id: str, **options: Any
    ) -> None:
        self._open_bus = open_bus
        self._trainer_id = trainer_id
        self._options = options
        self._state: Mapping[str, Any] | None = None
        self._held: list[Group] = []
        self._stack = AsyncExitStack()
        self._consumer: GroupConsumer | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"sink-{self._trainer_id}", daemon=True)
        self._thread.start()
        try:
            self._call(self._start(), CALL_WITHIN_S)
        except BaseException:  # raised again: no thread is left behind
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call(self._stack.aclose(), CALL_WITHIN_S)
        finally:
            self._stop()

    @property
    def consumer(self) -> GroupConsumer:
        """The consumer inside, for its counts; SinkStateError outside of the block."""
        if self._consumer is None:
            raise SinkStateError("the groups aren't open: use `with BlockingGroups(…) as groups`")
        return self._consumer

    def take(self, count: int, *, timeout_s: float = 3600.0) -> list[Group]:
        """The next `count` groups; NoGroupsError after `timeout_s`, or at the end of a log that is read to its end.

        What had come by then isn't lost: the next call begins with it.
        """
        return self._call(self._take(count, timeout_s), timeout_s + CALL_WITHIN_S)

    def skip(self, group: Group, reason: str) -> None:
        """See `GroupConsumer.skip`."""
        self._call(self._skip(group, reason), CALL_WITHIN_S)

    def commit(self, step: int, *, groups: Iterable[Group | str] | None = None, **details: Any) -> BatchConsumed:
        """See `GroupConsumer.commit`; without `groups` all that `take` has given."""
        return self._call(self._commit(step, groups, details), CALL_WITHIN_S)

    def state_dict(self) -> dict[str, Any]:
        """See `GroupConsumer.state_dict`."""
        return self._call(self._state_dict(), CALL_WITHIN_S)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `GroupConsumer.load_state_dict`: before the block, else SinkStateError."""
        if self._consumer is not None:
            raise SinkStateError("load a checkpoint before the groups are opened")
        self._state = state

    async def _start(self) -> None:
        async with AsyncExitStack() as stack:
            bus = await stack.enter_async_context(self._open_bus())
            consumer = GroupConsumer(bus, self._trainer_id, **self._options)
            if self._state is not None:
                consumer.load_state_dict(self._state)
            self._consumer = await stack.enter_async_context(consumer)
            self._stack = stack.pop_all()

    async def _take(self, count: int, timeout_s: float) -> list[Group]:
        try:
            async with asyncio.timeout(timeout_s):
                while len(self._held) < count:
                    self._held.append(await anext(self.consumer))
        except (TimeoutError, StopAsyncIteration) as end:
            why = f"within {timeout_s:g} s" if isinstance(end, TimeoutError) else "before the end of the log"
            raise NoGroupsError(
                f"trainer {self._trainer_id} wants {count} groups and {len(self._held)} came {why}: see `polynya status` for what "
                "is running, and the consumer's counts for what its filter refused"
            ) from end
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    async def _commit(
        self, step: int, groups: Iterable[Group | str] | None, details: Mapping[str, Any]
    ) -> BatchConsumed:
        if groups is None:  # those that wait for the rest of a step weren't trained
            held = {group.group_id for group in self._held}
            groups = [group_id for group_id in self.consumer.taken if group_id not in held]
        return await self.consumer.commit(step, groups=groups, **details)

    async def _skip(self, group: Group, reason: str) -> None:
        self.consumer.skip(group, reason)

    async def _state_dict(self) -> dict[str, Any]:
        return self.consumer.state_dict()

    def _call(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_WITHIN_S)
        self._loop.close()
