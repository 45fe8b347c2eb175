"""The control endpoints of an engine that speaks SGLang's protocol: pause, load weights from disk, continue, say what is loaded.

Needs httpx (extra `trainer`). Checked with SGLang 0.5.23 and the CPU engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import structlog

from trainer_sink.policies.modes import Deadlines, Loaded, PauseMode

_log = structlog.get_logger(__name__)

Guard = Callable[[], Awaitable[None]]
"""Raises when the writer may no longer push."""

_CONTINUES: Final = 3
_CONTINUE_PAUSE_S: Final = 1.0


class EngineControlError(Exception):
    """An engine refused, or didn't answer in time."""


class EngineControl:
    """One engine. `unfinished` holds what must still be awaited before the client is closed."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, *, deadlines: Deadlines, mode: PauseMode, api_key: str = ""
    ) -> None:
        self.url = url
        self.unfinished: set[asyncio.Task[str]] = set()
        self._client = client
        self._deadlines = deadlines
        self._mode = mode
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def loaded(self) -> Loaded:
        """What the engine serves now. Raises EngineControlError."""
        body = await self._ask("GET", "/model_info", self._deadlines.info_s)
        return Loaded(str(body.get("weight_version", "")), str(body.get("model_path", "")))

    async def load(self, path: Path, version: str, guard: Guard) -> None:
        """Loads a checkpoint under a version; whatever happens, the engine is told to go on.

        `guard` is asked right before each step that changes something. Raises what it raises, and EngineControlError.
        """
        await guard()
        try:
            await self._exchange(path, version, guard)
        except EngineControlError as error:
            if stays := await self._go_on():
                raise EngineControlError(f"{error}; {stays}") from error
            raise
        except BaseException:  # also a cancelled push leaves no engine paused
            await self._go_on()
            raise
        if stays := await self._go_on():
            raise EngineControlError(stays)
        loaded = await self.loaded()
        if loaded.version != version:
            raise EngineControlError(
                f"{self.url} says that it serves version {loaded.version!r} after it took {version!r}"
            )

    async def _exchange(self, path: Path, version: str, guard: Guard) -> None:
        await self._ask("POST", "/pause_generation", self._deadlines.pause_s, {"mode": self._mode})
        await guard()
        # With flush_cache the answer would be 400 while requests are paused in place, although the weights have changed.
        body = {"model_path": str(path), "weight_version": version, "flush_cache": False}
        answer = await self._ask("POST", "/update_weights_from_disk", self._deadlines.load_s, body)
        if answer.get("success") is not True:
            raise EngineControlError(f"{self.url} didn't load {path}: {answer.get('message', answer)}")
        try:
            await self._ask("POST", "/flush_cache", self._deadlines.pause_s)
        except EngineControlError as error:
            # Requests that were paused in place hold old keys and values: new prompts may find them in the cache.
            _log.warning("cache.kept", engine=self.url, version=version, why=str(error))

    async def _go_on(self) -> str:
        """Lets generation continue, also when the caller is cancelled meanwhile; '' or why the engine may stay paused."""
        task = asyncio.create_task(self._continue(), name=f"continue-{self.url}")
        self.unfinished.add(task)
        task.add_done_callback(self.unfinished.discard)
        return await asyncio.shield(task)

    async def _continue(self) -> str:
        problem = ""
        for attempt in range(_CONTINUES):
            if attempt:
                await asyncio.sleep(_CONTINUE_PAUSE_S)
            try:
                await self._ask("POST", "/continue_generation", self._deadlines.continue_s, {})
            except EngineControlError as error:
                problem = f"it may still be paused (curl -X POST {self.url}/continue_generation -d '{{}}'): {error}"
            else:
                return ""
        return problem

    async def _ask(
        self, method: str, route: str, deadline_s: float, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        url = self.url + route
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._client.request(method, url, json=body, headers=self._headers, timeout=None)
        except TimeoutError as late:
            raise EngineControlError(f"{url} didn't answer within {deadline_s:g} s") from late
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EngineControlError(f"{url}: {error!r}") from error
        if answer.status_code in (401, 403):
            raise EngineControlError(f"{url} answered {answer.status_code}: it wants its admin key (api_key=…)")
        if answer.status_code != 200:
            raise EngineControlError(f"{url} answered {answer.status_code}: {answer.text[:500]}")
        try:
            found = answer.json()
        except ValueError:  # some routes answer in words
            return {}
        return found if isinstance(found, dict) else {}
