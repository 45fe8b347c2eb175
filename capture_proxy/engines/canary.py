"""Whether an engine's tokenizer and chat template are the proxy's: canaries, compared before the first call.

With token-in another tokenizer corrupts everything in silence, so such an engine is refused. So is one with another template: it
serves another model directory than the one that the proxy was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from capture_proxy.engines.base import Engine, EngineInfo
from capture_proxy.engines.modes import NO_PROMPT_IDS, check_mode
from capture_proxy.reply import ProxyError

CANARY: Final = "Grüße, 世界! \n\tdef f(x):  return x**2  # 1234567 🧊 naïve"
"""A text that two different tokenizers hardly cut alike."""

CANARY_CHAT: Final[list[dict[str, Any]]] = [
    {"role": "system", "content": "Answer in one word.  "},
    {"role": "user", "content": CANARY},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Sure?\n"},
]
"""Says hardly less than the template's digest would: roles, their marks, white space, and where an answer begins."""


class Texts(Protocol):
    """The proxy's own tokenizer and template, as far as canaries need them."""

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, nothing added."""
        ...

    def render(self, messages: Any, tools: Any, template_kwargs: Any) -> list[int]:
        """Prompt ids of a conversation."""
        ...


@dataclass(slots=True)
class Examination:
    """What an engine is, why it may not be used (''), and what it can't give."""

    info: EngineInfo
    refusal: str = ""
    gaps: list[str] = field(default_factory=list)


async def examine(engine: Engine, texts: Texts, *, logprobs_mode: str | None = None) -> Examination:
    """Probes an engine and compares it with the proxy. Raises ProxyError where it can't answer now: ask again."""
    ids = await asyncio.to_thread(texts.encode, CANARY)
    info = await engine.probe(ids)
    found = Examination(info, gaps=list(info.gaps))
    if engine.is_text_in and not info.gives_ids:
        found.gaps.append("nothing that it samples can be trained: calls are recorded as untrainable")
        return found  # no ids, so no tokenizer to agree on
    if not info.gives_ids:
        found.refusal = f"it doesn't do what this kind of engine must: {'; '.join(info.gaps)}"
        return found
    if not engine.is_text_in and NO_PROMPT_IDS in info.gaps:
        found.gaps.append("that it got the prompt that was sent can't be checked")
    found.refusal = (
        await _compare_text(engine, ids, found)
        or await _compare_chat(engine, texts, found)
        or check_mode(logprobs_mode, info.logprobs_mode)
    )
    return found


async def _asked(answer: Awaitable[list[int] | None], what: str, does: str, found: Examination) -> list[int] | None:
    """The engine's ids, or None and a gap. Raises ProxyError while the engine can't answer at all."""
    try:
        theirs = await answer
    except ProxyError as error:
        if error.kind in ("overloaded", "engine_unavailable"):
            raise
        found.gaps.append(f"its {what} couldn't be compared: {error.message}")
        return None
    if theirs is None:
        found.gaps.append(f"it doesn't say how it {does}, so its {what} wasn't compared")
    return theirs


async def _compare_text(engine: Engine, ours: list[int], found: Examination) -> str:
    theirs = await _asked(engine.tokenize(CANARY), "tokenizer", "cuts text", found)
    if theirs is None or theirs == ours:
        return ""
    return (
        f"its tokenizer isn't the proxy's (a test text has {len(theirs)} ids there, {len(ours)} here, and they differ): "
        "give the proxy the model directory that the engine serves"
    )


async def _compare_chat(engine: Engine, texts: Texts, found: Examination) -> str:
    theirs = await _asked(engine.render(CANARY_CHAT), "chat template", "renders", found)
    if theirs is None:
        return ""
    ours = await asyncio.to_thread(texts.render, CANARY_CHAT, [], {})
    if theirs == ours:
        return ""
    at = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours)))
    return (
        f"its chat template isn't the proxy's (a test conversation differs from id {at} on, {len(theirs)} ids there, {len(ours)} "
        "here): give the proxy the model directory that the engine serves, or the engine the same chat template"
    )
