"""Chat templates run like transformers runs them."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.exceptions import SecurityError, TemplateError

from capture_proxy.rendering.jinja import ChatTemplate
from capture_proxy.rendering.template import TemplateRenderer


def render(source: str, messages: Any = (), tools: Any = (), **switches: Any) -> str:
    """A template's output, with one special token."""
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, tools, switches)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages | length }}", "<s>1"),
        ("{{ messages | tojson }}", '[{"a": "é<&"}]'),
        ("{{ messages[0] | tojson(indent=1) }}", '{\n "a": "é<&"\n}'),
        ("{% for m in [1,2,3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% generation %}x{{ 1 }}{% endgeneration %}", "x1"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
        ("{{ tools is none }}{{ add_generation_prompt }}{{ documents is none }}", "TrueTrueTrue"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_the_environment(source: str, expected: str) -> None:
    """Special tokens, JSON, loop controls, generation blocks, white space control and the given names."""
    assert render(source, [{"a": "é<&"}]) == expected


def test_switches_cannot_replace_the_conversation() -> None:
    """A client's template arguments never stand in for messages, tools or special tokens."""
    assert render("{{ messages | length }}{{ bos_token }}{{ x }}", messages=[{}], x=5, bos_token="evil") == "1<s>5"


def test_templates_are_sandboxed() -> None:
    """A template can't reach Python's internals or change what it is given, and can raise."""
    with pytest.raises(SecurityError):
        render("{{ ''.__class__.__mro__ }}")
    with pytest.raises(SecurityError):
        render("{{ messages.append(1) }}", [])
    with pytest.raises(TemplateError, match="no"):
        render("{{ raise_exception('no') }}")


@pytest.mark.deep
def test_same_text_and_ids_as_transformers(template: TemplateRenderer, qwen3_dir: Any) -> None:
    """Qwen3's own template and tokenizer, both ways."""
    transformers = pytest.importorskip("transformers")
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(str(qwen3_dir), local_files_only=True)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"p": "ü", "n": 1.5}}}
    messages = [
        {"role": "system", "content": "S\n"},
        {"role": "user", "content": "a  <b> & 漢🦊"},
        {"role": "assistant", "content": "x", "reasoning_content": "r", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "out"},
    ]
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object", "properties": {"items": {"enum": ["é"]}}}},
        }
    ]
    for end in (2, 3, 4):
        for switches in ({}, {"enable_thinking": False}):
            text = reference.apply_chat_template(
                messages[:end], tools=tools, tokenize=False, add_generation_prompt=True, **switches
            )
            assert template.render_text(messages[:end], tools, switches) == text
            assert template.encode(text) == reference(text, add_special_tokens=False)["input_ids"]
