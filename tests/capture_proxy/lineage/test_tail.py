"""What stands behind an answer: its ids and its cost, with a tokenizer that minds where a text begins, and with awkward templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from capture_proxy.rendering.jinja import ChatTemplate
from capture_proxy.rendering.template import TemplateRenderer
from capture_proxy.rendering.tokenizer import ModelTokenizer
from tests.capture_proxy.lineage.toy import World, one_line

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
NUMBERED = PLAIN.replace("<end>", "<end>{{ loop.index }}")
TOOLS_LAST = (
    "{% for m in messages %}{% if loop.last and tools %}T{{ tools | length }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}<end>{% endfor %}<assistant>"
)
VOCABULARY = {"\u2581": 5, "R": 41, "Q": 42, "A": 51, "T": 44, "1": 45, "2": 46, "3": 47, "4": 48, "5": 49, "?": 50}
THINKING = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<think>{{ m.reasoning_content | default('') }}</think>"
    "{% endif %}{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}"
)
THINK, THOUGHT = 97, 98
SPECIAL = {
    "<think>": THINK,
    "</think>": THOUGHT,
    "<end>": 99,
    "<user>": 2,
    "<assistant>": 3,
    "<system>": 1,
    "<tool>": 4,
}


def renderer(directory: Path, template: str) -> TemplateRenderer:
    """A word tokenizer that puts a mark before a text's first word, as SentencePiece models do."""
    vocabulary = {**VOCABULARY, **SPECIAL, "<unk>": 0}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))  # type: ignore[arg-type]
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    loaded = ModelTokenizer(directory)
    return TemplateRenderer(loaded, ChatTemplate(template, loaded.special_tokens))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_t20_no_space_is_put_before_the_tail(tmp_path: Path) -> None:
    """Alone, "R" begins with the mark 5; behind an end it doesn't, and so it is in the next prompt."""
    toy = renderer(tmp_path, PLAIN.replace("<{{ m.role }}>", ""))
    assert toy.encode("R") == [5, 41]
    world = World(renderer=toy)
    first = world.ask([user("Q")], [51, 99])
    second = world.ask([user("Q"), first.answer, user("R")], [51, 99])
    assert one_line(world.reaches(), first, second)
    assert second.prompt[second.record.prefix_len :] == [41, 99, 3]


@pytest.mark.parametrize(
    ("template", "is_local", "tools_matter"), [(PLAIN, True, False), (NUMBERED, False, False), (TOOLS_LAST, True, True)]
)
def test_a_template_that_looks_back_is_rendered_whole(
    tmp_path: Path, template: str, is_local: bool, tools_matter: bool
) -> None:
    """Only where nothing before the answer matters is the tail rendered from what is new alone; both ways give the same ids."""
    toy = renderer(tmp_path, template)
    assert (toy._is_tail_local, toy._are_tools_in_tail) == (is_local, tools_matter)
    tools = [{"type": "function", "function": {"name": "R"}}]
    history = [
        user("Q"),
        {"role": "assistant", "content": "A"},
        user("R"),
        {"role": "assistant", "content": "A"},
        user("Q"),
    ]
    extended = toy.extend([7], [51, 99], history, new_from=4, tools=tools, template_kwargs={})
    whole = toy.render(history, tools, {})
    assert extended is not None
    tail = extended[3:]
    assert whole[-len(tail) :] == tail
    assert whole[-len(tail) - 1] == 99


@pytest.mark.parametrize(
    "sent",
    [{"content": "<think>R</think>A"}, {"content": "R</think>A"}, {"content": "A", "reasoning_content": "R"}],
    ids=["whole", "as-sampled", "apart"],
)
def test_b113_the_opening_mark_in_the_prompt_is_never_doubled(tmp_path: Path, sent: dict[str, str]) -> None:
    """The prompt opens the thinking, the answer only closes it: however it comes back, the next prompt holds it as it was sampled."""
    world = World(renderer=renderer(tmp_path, THINKING))
    first = world.ask([user("Q")], [41, THOUGHT, 51, 99])
    assert (first.prompt[-1], first.record.reasoning, first.record.text) == (THINK, "R", "A")
    second = world.ask([user("Q"), {"role": "assistant", **sent}, user("R")], [41, THOUGHT, 51, 99])
    assert second.prompt == [
        *first.prompt,
        41,
        THOUGHT,
        51,
        99,
        SPECIAL["<user>"],
        41,
        99,
        SPECIAL["<assistant>"],
        THINK,
    ]
    assert second.parent_id == first.id
