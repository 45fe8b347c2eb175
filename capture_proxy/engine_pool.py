"""Which engine serves a call: by policy, then by session, so that a session keeps its engine's prefix cache."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from capture_proxy.engines.base import Engine, EngineInfo
from capture_proxy.reply import ProxyError

log = structlog.get_logger(__name__)

ANY_POLICY: Final = "*"

# How often an engine that hasn't answered its probe yet is asked again.
_PROBE_AGAIN_S: Final = 1.0


@dataclass(eq=False, slots=True)
class PooledEngine:
    """An engine and what it said of itself, once it did."""

    policy_id: str
    engine: Engine
    info: EngineInfo | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class EnginePool:
    """The engines by policy.

    `make(kind, url)` builds a client. An engine of another policy is never used: without one of its own, a policy falls
    back to the engines of '*', and then to an error.
    """

    def __init__(self, make: Callable[[str, str], Engine], *, context_length: int | None = None) -> None:
        self._make = make
        self._context_length = context_length
        self._engines: dict[tuple[str, str], PooledEngine] = {}

    def add(self, policy_id: str, url: str, kind: str, *, engine: Engine | None = None) -> None:
        """Takes an engine in and begins to probe it; one that is there already stays."""
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

    def choose(self, policy_id: str, session_id: str) -> Engine:
        """The engine for a session of a policy. Raises ProxyError(engine_unavailable)."""
        return self._chosen(policy_id, session_id).engine

    def info(self, policy_id: str, session_id: str) -> EngineInfo | None:
        """What the chosen engine said of itself; None before it did, or without an engine."""
        try:
            return self._chosen(policy_id, session_id).info
        except ProxyError:
            return None

    def context_length(self, policy_id: str, session_id: str) -> int | None:
        """The context's size in tokens, where it is known."""
        if self._context_length is not None:
            return self._context_length
        info = self.info(policy_id, session_id)
        return info.context_length if info is not None else None

    def _chosen(self, policy_id: str, session_id: str) -> PooledEngine:
        for wanted in (policy_id, ANY_POLICY):
            found = [(url, pooled) for (policy, url), pooled in self._engines.items() if policy == wanted]
            if found:
                # Rendezvous hashing: an engine that comes or goes moves only the sessions that it wins or held.
                return max(found, key=lambda item: hashlib.sha256(f"{session_id}\x1f{item[0]}".encode()).digest())[1]
        raise ProxyError(
            "engine_unavailable",
            f"no engine serves policy {policy_id!r}: add one in the settings or with `polynya engine`",
        )

    def describe(self) -> list[dict[str, object]]:
        """The engines in words, for health."""
        return [
            {
                "policy_id": pooled.policy_id,
                "url": url,
                "kind": pooled.engine.kind,
                "is_probed": pooled.info is not None,
                "gaps": list(pooled.info.gaps) if pooled.info else [],
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
        while pooled.info is None:
            try:
                pooled.info = await pooled.engine.probe()
            except ProxyError as error:
                if not is_told:
                    log.warning("engine.unreachable", url=pooled.engine.url, error=error.message)
                    is_told = True
                await asyncio.sleep(_PROBE_AGAIN_S)
        if pooled.info.gaps:
            log.warning("engine.has_gaps", url=pooled.engine.url, gaps=pooled.info.gaps)
        log.info(
            "engine.probed", url=pooled.engine.url, model=pooled.info.model, weight_version=pooled.info.weight_version
        )


async def _close(pooled: PooledEngine) -> None:
    for task in pooled.tasks:
        task.cancel()
    await asyncio.gather(*pooled.tasks, return_exceptions=True)
    await pooled.engine.close()
