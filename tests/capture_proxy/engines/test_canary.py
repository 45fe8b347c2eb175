"""What is found out about an engine before its first call: mode, gaps, tokenizer, template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from capture_proxy.engines.base import EngineInfo
from capture_proxy.engines.canary import CANARY, CANARY_CHAT, examine
from capture_proxy.engines.modes import NO_IDS, NO_PROMPT_IDS, PROCESSED, RAW, TEMPERATURE, check_mode, mode_of
from capture_proxy.reply import ProxyError
from tests.capture_proxy.fakes import CharRenderer


class FakeEngine:
    """An engine that says what a test wants."""

    kind, url = "fake", "http://fake"

    def __init__(self, *, gaps: tuple[str, ...] = (), is_text_in: bool = False, mode: str = TEMPERATURE) -> None:
        self.is_text_in = is_text_in
        self.info = EngineInfo(
            kind="fake", url=self.url, model="m", logprobs_mode=mode, gaps=gaps, gives_ids=NO_IDS not in gaps
        )
        self.tokens: Any = CharRenderer().encode(CANARY)
        self.rendered: Any = CharRenderer().render(CANARY_CHAT, [], {})

    async def probe(self, prompt_ids: Sequence[int], timeout_s: float = 5.0) -> EngineInfo:
        assert list(prompt_ids) == CharRenderer().encode(CANARY)
        return self.info

    async def tokenize(self, text: str) -> list[int] | None:
        assert text == CANARY
        if isinstance(self.tokens, Exception):
            raise self.tokens
        return self.tokens

    async def render(self, messages: list[dict[str, Any]]) -> list[int] | None:
        assert messages == CANARY_CHAT
        if isinstance(self.rendered, Exception):
            raise self.rendered
        return self.rendered


async def examined(engine: FakeEngine, **options: Any) -> Any:
    """What `examine` finds."""
    return await examine(engine, CharRenderer(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cold", "hot", "mode"),
    [(-7.6, -9.6, TEMPERATURE), (-7.6, -7.6, RAW), (0.0, 0.0, PROCESSED), (-1e-6, 0.0, PROCESSED)],
)
def test_b119_two_temperatures_tell_the_mode(cold: float, hot: float, mode: str) -> None:
    """The likeliest token's logprob: moved by the temperature, or not, or 0 since the cut left nothing else."""
    assert mode_of({1.0: cold, 2.0: hot}) == mode


def test_b119_a_pinned_mode_is_checked() -> None:
    """Another mode than the settings pin is a refusal that names the engines' options for it."""
    assert check_mode(None, RAW) == ""
    assert check_mode(RAW, RAW) == ""
    assert "--logprobs-mode" in check_mode(PROCESSED, RAW)
    assert "unknown" in check_mode(PROCESSED, "")


async def test_an_engine_that_agrees_is_used() -> None:
    """No refusal, no gap."""
    found = await examined(FakeEngine())
    assert (found.refusal, found.gaps) == ("", [])


async def test_another_tokenizer_is_refused() -> None:
    """The message says how many ids, and what to do."""
    engine = FakeEngine()
    engine.tokens = [1, 2]
    found = await examined(engine)
    assert "has 2 ids there" in found.refusal
    assert "model directory" in found.refusal


async def test_another_template_is_refused() -> None:
    """One id more at the place where the template differs."""
    engine = FakeEngine()
    engine.rendered = [*engine.rendered[:7], 0, *engine.rendered[7:]]
    found = await examined(engine)
    assert "chat template" in found.refusal
    assert "from id 7 on" in found.refusal


@pytest.mark.parametrize("attribute", ["tokens", "rendered"])
async def test_what_it_doesnt_tell_is_a_gap(attribute: str) -> None:
    """No such endpoint, or one that fails: used, and said."""
    for answer in (None, ProxyError("engine_error", "the engine answered 500: no")):
        engine = FakeEngine()
        setattr(engine, attribute, answer)
        found = await examined(engine)
        assert found.refusal == ""
        assert any("compared" in gap for gap in found.gaps)


async def test_an_engine_that_is_busy_is_asked_again() -> None:
    """A canary that can't be compared now isn't a gap for ever."""
    engine = FakeEngine()
    engine.tokens = ProxyError("engine_unavailable", "loading")
    with pytest.raises(ProxyError):
        await examined(engine)


async def test_a_token_in_engine_that_gives_no_ids_is_refused() -> None:
    """Its kind is wrong: every call would be lost for training."""
    found = await examined(FakeEngine(gaps=(NO_IDS,)))
    assert NO_IDS in found.refusal


async def test_a_chat_server_without_ids_is_used_and_said_to_be_untrainable() -> None:
    """Nothing is compared: there are no ids that could be wrong."""
    engine = FakeEngine(gaps=(NO_IDS,), is_text_in=True)
    engine.tokens = [1]
    found = await examined(engine)
    assert found.refusal == ""
    assert any("can be trained" in gap for gap in found.gaps)


async def test_a_token_in_engine_without_an_echo_is_a_gap() -> None:
    """The check of what it got is missing then."""
    found = await examined(FakeEngine(gaps=(NO_PROMPT_IDS,)))
    assert found.refusal == ""
    assert any("can't be checked" in gap for gap in found.gaps)
