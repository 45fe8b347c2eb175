"""Ids to text, one at a time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capture_proxy.rendering.detokenizer import Detokenizer, WindowDetokenizer
from capture_proxy.rendering.template import TemplateRenderer


def drain(detokenizer: Detokenizer, ids: list[int]) -> str:
    """All text of an output; no step may end inside a character."""
    pieces = [detokenizer.step(token_id) for token_id in ids]
    assert not any("\ufffd" in piece for piece in pieces[:-1])
    return "".join(pieces) + detokenizer.flush()


@pytest.mark.parametrize("kind", ["bytes", "window"])
def test_characters_that_span_tokens_are_held(template: TemplateRenderer, kind: str) -> None:
    """Emoji and rare characters come out whole."""
    text = "漢🦊ö ꙮ 👩‍👩‍👧 \U00012345 end"
    detokenizer = template.detokenizer() if kind == "bytes" else WindowDetokenizer(template._decode_visible)
    assert drain(detokenizer, template.encode(text)) == text


@pytest.mark.parametrize("kind", ["bytes", "window"])
def test_an_incomplete_end_is_not_swallowed(template: TemplateRenderer, kind: str) -> None:
    """An output cut inside a character ends with U+FFFD, as the whole decodes."""
    ids = template.encode("ok \U00012345")[:-1]
    detokenizer = template.detokenizer() if kind == "bytes" else WindowDetokenizer(template._decode_visible)
    text = "".join(map(detokenizer.step, ids)) + detokenizer.flush()
    assert text == template.decode(ids)
    assert text.endswith("\ufffd")


def test_specials_are_hidden_and_marks_are_not(template: TemplateRenderer) -> None:
    """End-of-turn tokens never reach a client; thinking and tool marks reach the parser; padding ids are nothing."""
    ids = [*template.encode("<think>a</think><tool_call><|im_end|><|endoftext|>"), 151_900]
    assert drain(template.detokenizer(), ids) == "<think>a</think><tool_call>"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.lists(st.integers(0, 151_642), max_size=20))
def test_random_ids_decode_like_the_tokenizer(template: TemplateRenderer, ids: list[int]) -> None:
    """For any ids, also those that are no valid UTF-8, the pieces add up to the tokenizer's own decoding."""
    detokenizer = template.detokenizer()
    assert "".join(map(detokenizer.step, ids)) + detokenizer.flush() == template.decode(ids)
