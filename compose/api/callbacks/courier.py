"""Which results cause which callbacks, and how far each one is: two lanes, one of results and one of what waits for another try.

The first lane tries each callback once and publishes how it went (`rollout.callbacks`): delivered, or due again. The second lane
waits until what is due may be tried again. Both commit after that, so a killed process repeats at most what it had in hand; a
receiver that is down holds up only what is due for it, since its results wait in the second lane.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import structlog

from bus import Bus, Delivery
from bus.claims import resolve
from compose.api.callbacks.allowed import refusal
from compose.api.callbacks.bodies import Bodies, OversizedError
from compose.api.callbacks.sender import Sender
from compose.api.projection import ScoredHead
from compose.api.rows import GroupRow, TaskRow
from compose.api.settings import ApiSettings
from compose.api.views import Views
from schemas import ids
from schemas.records import Callback, CallbackState, ScoredTrajectory

_log = structlog.get_logger(__name__)

SESSION, TASK = "session.scored", "task.scored"

SEEN_WITHIN_S: Final = 30.0
"""How long the view may need to read what the lane has read; then the lane tries the record again."""

REGISTERED_WITHIN_MS: Final = 60_000
"""A result whose session the view has never heard of is tried again for so long; then the log no longer has its task."""


class NotYetError(Exception):
    """The view hasn't read what this record builds on."""

    is_retriable = True


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Courier:
    """Handles the records of both lanes."""

    def __init__(self, bus: Bus, views: Views, bodies: Bodies, sender: Sender, settings: ApiSettings) -> None:
        self._bus = bus
        self._views = views
        self._bodies = bodies
        self._sender = sender
        self._settings = settings
        self.stopping = asyncio.Event()

    # -- results -----------------------------------------------------------------------------------------------------

    async def on_scored(self, delivery: Delivery) -> None:
        """Tell the task's URL of a session's first result, and of the group's end when that was the last one."""
        head = ScoredHead.of_headers(delivery.headers) or await self._head(delivery)
        if head.revision != 1:
            return
        async with asyncio.timeout(SEEN_WITHIN_S):
            await self._views.wait_caught_up()
            await self._views.wait_past(delivery.position)
        task = self._task_of(head, delivery)
        if task is None:
            return
        for callback in self._caused(task, head, delivery):
            if callback.delivery_id not in task.callbacks:
                await self._publish(await self._try(callback))

    async def _head(self, delivery: Delivery) -> ScoredHead:
        record = (await resolve(delivery, self._bus.blobs)).decode()
        if not isinstance(record, ScoredTrajectory):
            raise TypeError(f"a {record.NAME} is no result")
        return ScoredHead.of_record(record)

    def _task_of(self, head: ScoredHead, delivery: Delivery) -> TaskRow | None:
        """The task when it wants callbacks."""
        session = self._views.rows.sessions.get(head.session_id)
        task = self._views.rows.tasks.get(head.task_id)
        is_known = task is not None and session is not None and bool(session.registered_at or task.digest)
        if not is_known and not self._views.rows.is_forgotten(head.task_id):
            if _now_ms() - delivery.timestamp_ms < REGISTERED_WITHIN_MS:
                raise NotYetError(f"the view hasn't read how session {head.session_id} began")
            return None
        return task if task is not None and task.callback_url else None

    def _caused(self, task: TaskRow, head: ScoredHead, delivery: Delivery) -> Iterator[Callback]:
        group = task.groups[head.group_id]
        if task.callback_body == "summary":
            yield self._callback(task, group, SESSION, head.session_id, delivery)
        # Decided by offsets alone, so that a record that comes again causes the same.
        if not group.is_scored:
            return
        firsts = [s.result.first_offset for s in group.sessions.values() if s.result is not None]
        done = [offset for offset in firsts if offset <= delivery.offset]
        if len(done) >= group.size and max(done) == delivery.offset:
            yield self._callback(task, group, TASK, "", delivery)

    def _callback(self, task: TaskRow, group: GroupRow, kind: str, session_id: str, delivery: Delivery) -> Callback:
        now = _now_ms()
        return Callback(
            delivery_id=ids.derive("callback", kind, task.task_id, group.group_id, session_id),
            task_id=task.task_id,
            group_id=group.group_id,
            session_id=session_id,
            kind=kind,
            url=task.callback_url,
            state=CallbackState.DUE,
            deadline_at=now + int(self._settings.callback_deadline_s * 1000),
            source_partition=delivery.partition,
            source_offset=delivery.offset,
            at=now,
        )

    # -- what is due -------------------------------------------------------------------------------------------------

    async def on_callback(self, delivery: Delivery) -> None:
        """Try what is due again, at its time."""
        callback = delivery.decode()
        if not isinstance(callback, Callback):
            raise TypeError(f"a {callback.NAME} is no callback")
        if callback.state is not CallbackState.DUE:
            return
        async with asyncio.timeout(SEEN_WITHIN_S):
            await self._views.wait_caught_up()
            await self._views.wait_past(delivery.position)
        task = self._views.rows.tasks.get(callback.task_id)
        known = task.callbacks.get(callback.delivery_id) if task is not None else None
        if known is not None and (known.state is not CallbackState.DUE or known.tries > callback.tries):
            return  # this try is behind us
        wait_s = min((callback.next_at - _now_ms()) / 1000, self._settings.callback_longest_pause_s)
        if wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await self.stopping.wait()
            except TimeoutError:
                pass
            else:
                raise NotYetError("the process ends; whoever takes over waits on")
        await self._publish(await self._try(callback))

    # -- one try -----------------------------------------------------------------------------------------------------

    async def _try(self, callback: Callback) -> Callback:
        """The callback as it stands after one more try."""
        tries = callback.tries + 1
        if why := refusal(callback.url, self._settings):
            return replace(callback, state=CallbackState.GIVEN_UP, tries=tries, error=why)
        try:
            body = await self._bodies.of(callback)
        except OversizedError as error:
            return replace(callback, state=CallbackState.GIVEN_UP, tries=tries, error=str(error))
        if body is None:
            why = "the log no longer has what it tells"
            return replace(callback, state=CallbackState.GIVEN_UP, tries=tries, error=why)
        if self._sender.is_failing(callback.url):
            why = callback.error or "its host has just failed"
            return self._later(replace(callback, tries=tries, error=why, at=_now_ms()))
        outcome = await self._sender.post(callback.url, body, event=callback.kind, delivery_id=callback.delivery_id)
        tried = replace(callback, tries=tries, status_code=outcome.status_code, error=outcome.error, at=_now_ms())
        if outcome.is_delivered:
            return replace(tried, state=CallbackState.DELIVERED)
        return self._later(tried)

    def _later(self, tried: Callback) -> Callback:
        """Due again after a pause that doubles, or given up when that would be too late."""
        settings = self._settings
        doubled_s = settings.callback_first_pause_s * 2.0 ** min(tried.tries - 1, 16)
        next_at = tried.at + int(min(settings.callback_longest_pause_s, doubled_s) * 1000)
        if next_at <= tried.deadline_at:
            return replace(tried, state=CallbackState.DUE, next_at=next_at)
        error = f"not delivered within {settings.callback_deadline_s:g} s: {tried.error}"
        return replace(tried, state=CallbackState.GIVEN_UP, error=error)

    async def _publish(self, callback: Callback) -> None:
        position = await self._bus.publish(callback, deadline_s=self._settings.publish_within_s)
        log = _log.error if callback.state is CallbackState.GIVEN_UP else _log.info
        log(
            "callback." + callback.state,
            task_id=callback.task_id,
            session_id=callback.session_id,
            kind=callback.kind,
            tries=callback.tries,
            error=callback.error,
            offset=position.offset,
        )
