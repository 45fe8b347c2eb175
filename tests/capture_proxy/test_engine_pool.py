"""Which engine of a pool serves a session."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from capture_proxy import engine_pool
from capture_proxy.engine_pool import EnginePool
from capture_proxy.reply import ProxyError


class Engine:
    """An engine that answers its probe when it is told to, and how."""

    kind = "sglang"

    def __init__(self, url: str) -> None:
        self.url = url
        self.refusal = ""
        self.answers = asyncio.Event()

    async def close(self) -> None:
        """Nothing is open."""


class Pool(EnginePool):
    """A pool of stand-ins, by their addresses."""

    def __init__(self) -> None:
        self.made: dict[str, Engine] = {}
        super().__init__(self._make_one, None, wait_s=5.0)  # type: ignore[arg-type]

    def _make_one(self, _: str, url: str) -> Any:
        return self.made.setdefault(url, Engine(url))

    async def up(self, url: str, refusal: str = "") -> None:
        """Let it answer its probe, and wait until that is known."""
        self.made[url].refusal = refusal
        self.made[url].answers.set()
        pooled = next(p for p in self._engines.values() if p.engine.url == url)
        await asyncio.wait_for(pooled.probed.wait(), 5)

    async def serving(self) -> set[str]:
        """The engines that serve a hundred sessions."""
        return {(await self.choose("p", f"session-{n}")).engine.url for n in range(100)}


@pytest.fixture
async def pool(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pool with two engines of one policy; neither has answered."""

    async def examine(engine: Engine, *_: object, **__: object) -> Any:
        await engine.answers.wait()
        info = SimpleNamespace(model="", weight_version="", logprobs_mode="", context_length=None)
        return SimpleNamespace(info=info, refusal=engine.refusal, gaps=[])

    monkeypatch.setattr(engine_pool, "examine", examine)
    made = Pool()
    for url in ("http://one", "http://two"):
        made.add("p", url, "sglang")
    yield made
    await made.close()


async def test_an_engine_that_does_not_answer_costs_no_session(pool: Pool) -> None:
    """A mistyped address beside a good one: the good one serves all, until the other answers and takes its share."""
    await pool.up("http://one")
    assert await pool.serving() == {"http://one"}
    await pool.up("http://two")
    assert await pool.serving() == {"http://one", "http://two"}


async def test_a_refused_engine_costs_no_session_but_alone_is_an_error(pool: Pool) -> None:
    """The error says why it was refused."""
    await pool.up("http://two", refusal="another tokenizer")
    await pool.up("http://one")
    assert await pool.serving() == {"http://one"}
    await pool.remove("p", "http://one")
    with pytest.raises(ProxyError, match="is refused: another tokenizer"):
        await pool.choose("p", "session-1")


async def test_a_session_waits_for_its_engine_where_none_answered_yet(pool: Pool) -> None:
    """Right after a start: no error, as long as one comes up in time."""
    waiting = asyncio.create_task(pool.choose("p", "session-1"))
    await asyncio.sleep(0)
    await pool.up("http://one")
    await pool.up("http://two")
    assert (await asyncio.wait_for(waiting, 5)).is_ready


async def test_a_model_that_is_a_policy_with_engines_is_meant(pool: Pool) -> None:
    """Any other name, and the one for all, means the session's own policy."""
    pool.add("*", "http://any", "sglang")
    assert pool.policy_of("p", "mine") == "p"
    assert [pool.policy_of(model, "mine") for model in ("gpt-5", "*", "", "mine")] == ["mine"] * 4
