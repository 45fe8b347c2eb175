"""Which engine serves a call: by policy, then by session, so that a session keeps its engine's prefix cache."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from capture_proxy.engines.base import Engine, EngineInfo
from capture_proxy.engines.canary import Texts, examine
from capture_proxy.reply import ProxyError

log = structlog.get_logger(__name__)

ANY_POLICY: Final = "*"

# How often an engine that hasn't answered its probe yet is asked again.
_PROBE_AGAIN_S: Final = 1.0
_PROBE_FAILED_S: Final = 10.0


@dataclass(eq=False, slots=True)
class PooledEngine:
    """An engine and what it said of itself, once it did. A `refusal` says why it may not be used."""

    policy_id: str
    engine: Engine
    info: EngineInfo | None = None
    refusal: str = ""
    gaps: list[str] = field(default_factory=list)
    probed: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        """Whether it answered its probe and may be used."""
        return self.probed.is_set() and not self.refusal

    @property
    def logprobs_mode(self) -> str:
        """Of which distribution its logprobs are."""
        return self.info.logprobs_mode if self.info is not None else ""


class EnginePool:
    """The engines by policy.

    `make(kind, url)` builds a client. An engine of another policy is never used: without one of its own, a policy falls
    back to the engines of '*', and then to an error. An engine takes calls once its probe was answered, and never when its
    tokenizer or its chat template isn't that of `texts`, or its logprobs aren't of the pinned mode.
    """

    def __init__(
        self,
        make: Callable[[str, str], Engine],
        texts: Texts,
        *,
        context_length: int | None = None,
        logprobs_mode: str | None = None,
        wait_s: float = 5.0,
    ) -> None:
        self._make = make
        self._texts = texts
        self._logprobs_mode = logprobs_mode
        self._context_length = context_length
        self._wait_s = wait_s
        self._engines: dict[tuple[str, str], PooledEngine] = {}

    def add(self, policy_id: str, url: str, kind: str, *, engine: Engine | None = None) -> None:
        """Takes an engine in and begins to probe it; one that is there already stays. Raises ValueError for an unknown kind."""
        key = (policy_id, url.rstrip("/"))
        if key in self._engines:
            return
        pooled = PooledEngine(policy_id, engine or self._make(kind, url))
        self._engines[key] = pooled
        pooled.tasks.add(asyncio.create_task(self._probe(pooled), name=f"probe-{url}"))
        log.info("engine.added", policy_id=policy_id, url=url, kind=kind)

    async def remove(self, policy_id: str, url: str) -> None:
        """Takes an engine out; calls that run on it go on until it fails them."""
        pooled = self._engines.pop((policy_id, url.rstrip("/")), None)
        if pooled is not None:
            await _close(pooled)
            log.info("engine.removed", policy_id=policy_id, url=url)

    def policy_of(self, model: str, own: str) -> str:
        """The policy that a call for `model` is meant for: the one of that name where it has engines of its own, else the session's `own`.

        So a judge that is served beside the policy under training answers as itself.
        """
        return model if model != ANY_POLICY and any(policy == model for policy, _ in self._engines) else own

    async def choose(self, policy_id: str, session_id: str) -> PooledEngine:
        """The engine for a session of a policy; waits a while for its probe. Raises ProxyError(engine_unavailable)."""
        pooled = self._find(policy_id, session_id)
        if pooled is None:
            raise ProxyError(
                "engine_unavailable",
                f"no engine serves policy {policy_id!r}: add one in the settings or with `polynya engine`",
            )
        try:
            async with asyncio.timeout(self._wait_s):
                await pooled.probed.wait()
        except TimeoutError:
            raise ProxyError("engine_unavailable", f"the engine at {pooled.engine.url} doesn't answer") from None
        if pooled.refusal:
            raise ProxyError("engine_unavailable", f"the engine at {pooled.engine.url} is refused: {pooled.refusal}")
        return pooled

    async def context_length(self, policy_id: str, session_id: str) -> int | None:
        """The context's size in tokens, where it is known; waits like `choose`, but raises nothing."""
        if self._context_length is not None:
            return self._context_length
        try:
            pooled = await self.choose(policy_id, session_id)
        except ProxyError:
            return None  # the call will hear of it when it asks for the engine
        return pooled.info.context_length if pooled.info is not None else None

    def _find(self, policy_id: str, session_id: str) -> PooledEngine | None:
        for wanted in (policy_id, ANY_POLICY):
            found = [(url, pooled) for (policy, url), pooled in self._engines.items() if policy == wanted]
            if found:
                # One that doesn't answer yet, or is refused, must not cost the sessions that another could serve.
                found = [item for item in found if item[1].is_ready] or found
                # Rendezvous hashing: an engine that comes or goes moves only the sessions that it wins or held.
                return max(found, key=lambda item: hashlib.sha256(f"{session_id}\x1f{item[0]}".encode()).digest())[1]
        return None

    def describe(self) -> list[dict[str, object]]:
        """The engines in words, for health."""
        return [
            {
                "policy_id": pooled.policy_id,
                "url": url,
                "kind": pooled.engine.kind,
                "is_probed": pooled.probed.is_set(),
                "refusal": pooled.refusal,
                "gaps": list(pooled.gaps),
            }
            for (_, url), pooled in self._engines.items()
        ]

    async def close(self) -> None:
        """Stops probing and gives all connections back."""
        engines, self._engines = list(self._engines.values()), {}
        for pooled in engines:
            await _close(pooled)

    async def _probe(self, pooled: PooledEngine) -> None:
        is_told = False
        while True:
            try:
                found = await examine(pooled.engine, self._texts, logprobs_mode=self._logprobs_mode)
                break
            except ProxyError as error:
                if not is_told:
                    log.warning("engine.unreachable", url=pooled.engine.url, error=error.message)
                    is_told = True
                await asyncio.sleep(_PROBE_AGAIN_S)
            except Exception:  # an engine's boundary: what it answers may be anything, and another one may be fine
                log.exception("engine.probe_failed", url=pooled.engine.url)
                await asyncio.sleep(_PROBE_FAILED_S)
        pooled.info, pooled.refusal, pooled.gaps = found.info, found.refusal, found.gaps
        if pooled.refusal:
            log.error("engine.refused", url=pooled.engine.url, why=pooled.refusal)
        if pooled.gaps:
            log.warning("engine.has_gaps", url=pooled.engine.url, gaps=pooled.gaps)
        log.info(
            "engine.probed",
            url=pooled.engine.url,
            model=found.info.model,
            weight_version=found.info.weight_version,
            logprobs_mode=found.info.logprobs_mode,
        )
        pooled.probed.set()


async def _close(pooled: PooledEngine) -> None:
    for task in pooled.tasks:
        task.cancel()
    await asyncio.gather(*pooled.tasks, return_exceptions=True)
    await pooled.engine.close()
