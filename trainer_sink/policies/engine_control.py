"""The control endpoints of an engine that speaks SGLang's protocol: pause, load weights from disk, continue, say what is loaded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import structlog

_log = structlog.get_logger(__name__)

PauseMode = Literal["retract", "in_place"]
"""What becomes of running requests: `retract` computes their keys and values again under the new weights, so that every token's
logprob is that of its own version; `in_place` keeps those of the old weights, which is faster and mixes the two."""


class EngineControlError(Exception):
    """An engine refused, or didn't answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long each step on one engine may take, in seconds. Loading is the long one: it reads the checkpoint from a disk."""

    pause_s: float = 30.0
    load_s: float = 600.0
    continue_s: float = 30.0
    info_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an engine says that it serves."""

    version: str
    model_path: str


class EngineControl:
    """One engine's control endpoints (SGLang 0.5.23 and the CPU engine)."""

    def __init__(self, client: httpx.AsyncClient, url: str, *, deadlines: Deadlines, mode: PauseMode) -> None:
        self.url = url.rstrip("/")
        self._client = client
        self._deadlines = deadlines
        self._mode = mode

    async def loaded(self) -> Loaded:
        """What the engine serves now."""
        body = await self._ask("GET", "/model_info", self._deadlines.info_s)
        return Loaded(str(body.get("weight_version", "")), str(body.get("model_path", "")))

    async def load(self, path: Path, version: str) -> None:
        """Loads a checkpoint under a version, and lets the engine go on whatever happens."""
        try:
            await self._ask("POST", "/pause_generation", self._deadlines.pause_s, {"mode": self._mode})
            # flush_cache here would answer 400 while requests are paused in place, although the weights have changed.
            body = {"model_path": str(path), "weight_version": version, "flush_cache": False}
            answer = await self._ask("POST", "/update_weights_from_disk", self._deadlines.load_s, body)
            if answer.get("success") is not True:
                raise EngineControlError(f"{self.url} didn't load {path}: {answer.get('message', answer)}")
            await self._flush()
        finally:
            await asyncio.shield(self._ask("POST", "/continue_generation", self._deadlines.continue_s, {}))
        loaded = await self.loaded()
        if loaded.version != version:
            raise EngineControlError(
                f"{self.url} says that it serves version {loaded.version!r} after it took {version!r}"
            )

    async def _flush(self) -> None:
        """Keys and values of older weights would otherwise be used for new prompts."""
        try:
            await self._ask("POST", "/flush_cache", self._deadlines.pause_s)
        except EngineControlError as error:
            _log.warning("cache.kept", engine=self.url, why=str(error))

    async def _ask(
        self, method: str, route: str, deadline_s: float, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._client.request(method, self.url + route, json=body, timeout=None)
        except TimeoutError as late:
            raise EngineControlError(f"{self.url}{route} didn't answer within {deadline_s:.0f} s") from late
        except httpx.HTTPError as error:
            raise EngineControlError(f"{self.url}{route}: {error!r}") from error
        if answer.status_code != 200:
            raise EngineControlError(f"{self.url}{route} answered {answer.status_code}: {answer.text[:500]}")
        try:
            found = answer.json()
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
