from __future__ import annotations

from typing import Any

import pytest

from compose.cpu_engine.text import GrowingText, held_back

SAMPLES = [
    "plain words, then more",
    "naïve café 漢字 🙂🙃 end",
    '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "a"}\n</tool_call><|im_end|>',
    "def f():\n    return 'x'\n\n\n# é",
]


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize("skip", [True, False])
def test_growing_text_equals_decoding_at_once(tokenizer: Any, text: str, skip: bool) -> None:
    """Token by token the text only ever grows, never shows a broken character, and ends as the whole decoding."""
    ids = tokenizer.encode(text)
    growing = GrowingText(tokenizer, skip_special_tokens=skip)
    last = ""
    for count in range(1, len(ids) + 1):
        now = growing.grow(ids[:count])
        assert now.startswith(last)
        assert "\ufffd" not in now
        last = now
    assert last == tokenizer.decode(ids, skip_special_tokens=skip)


def test_several_tokens_at_a_time_give_the_same_text(tokenizer: Any) -> None:
    """A slow reader that skips steps sees the same text."""
    ids = tokenizer.encode(SAMPLES[1] * 3)
    growing = GrowingText(tokenizer, skip_special_tokens=True)
    for count in (3, 4, 11, len(ids)):
        text = growing.grow(ids[:count])
    assert text == SAMPLES[1] * 3


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("abc", (), 0),
        ("abcST", ("STOP",), 2),
        ("abc", ("STOP",), 0),
        ("xSTO", ("STOP", "TOMATO"), 3),
        ("S", ("STOP",), 1),
        ("", ("X",), 0),
    ],
)
def test_only_a_possible_beginning_of_a_stop_string_is_held_back(
    text: str, stops: tuple[str, ...], expected: int
) -> None:
    """The longest end of the text that some stop string begins with."""
    assert held_back(text, stops) == expected


def test_special_tokens_in_text_become_their_ids(tokenizer: Any) -> None:
    """The ids that the whole product relies on are Qwen3's own."""
    assert tokenizer.encode("<|im_start|>assistant\n<tool_call></tool_call><think></think><|im_end|>") == [
        151644, 77091, 198, 151657, 151658, 151667, 151668, 151645
    ]  # fmt: skip
    assert tokenizer.eos_id == 151645


def test_a_template_that_refuses_says_so(tokenizer: Any) -> None:
    """Messages that the template can't render are a ValueError with its complaint."""
    with pytest.raises(ValueError, match="template"):
        tokenizer.render([{"role": "assistant", "tool_calls": 5}], None, {})
