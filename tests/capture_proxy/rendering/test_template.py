"""Both renderers on the real Qwen3 tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from capture_proxy.rendering import Renderer
from capture_proxy.rendering.jinja import ChatTemplate
from capture_proxy.rendering.template import TemplateRenderer
from capture_proxy.reply import ProxyError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "ls",
            "parameters": {"type": "object", "properties": {n: {"type": "string"} for n in ("items", "keys", "get")}},
        },
    }
]
HEAD: list[dict[str, Any]] = [{"role": "system", "content": "S"}, {"role": "user", "content": "go"}]
SAMPLED = '<think>\nhmm\n</think>\n\nOk.\n\n<tool_call>\n{"name":"ls","arguments":{"p":"ü",  "n":1.0}}\n</tool_call><|im_end|>'
ANSWER = {
    "role": "assistant",
    "content": "Ok.",
    "reasoning_content": "hmm",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"p":"ü","n":1}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "a.txt"}


def run_parser(renderer: Renderer, prompt: list[int], ids: list[int]) -> tuple[str, Any]:
    """Streamed text and the whole."""
    parser = renderer.parser(prompt, is_parsing_tools=True, tools=TOOLS)
    deltas = [delta for token_id in ids for delta in parser.feed([token_id])]
    last, reply = parser.finish()
    return "".join(delta.text for delta in [*deltas, *last]), reply


def test_rendering(renderer: Renderer) -> None:
    """The prompt holds system, tools and question, and ends ready for the answer; awkward property names are no trouble."""
    text = renderer.decode(renderer.render(HEAD, TOOLS, {}))
    assert text.startswith("<|im_start|>system\nS\n\n# Tools")
    assert text.endswith("<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n")
    assert all(f'"{name}"' in text for name in ("items", "keys", "get"))


def test_both_render_alike(template: TemplateRenderer, library: Renderer) -> None:
    """Same ids for a conversation with tools, thinking and results; same digests."""
    for messages in (
        HEAD,
        [*HEAD, ANSWER, RESULT],
        [*HEAD, ANSWER, RESULT, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
    ):
        assert template.render(messages, TOOLS, {}) == library.render(messages, TOOLS, {})
    assert (template.tokenizer_digest, template.template_digest) == (library.tokenizer_digest, library.template_digest)
    assert library.name == "qwen3"


def test_template_switches(renderer: Renderer) -> None:
    """Thinking off is a prefilled empty block; unknown and reserved switches change nothing."""
    off = renderer.decode(renderer.render(HEAD, (), {"enable_thinking": False}))
    assert off.endswith("<think>\n\n</think>\n\n")
    plain = renderer.render(HEAD, (), {})
    assert (
        renderer.render(
            HEAD,
            (),
            {"enable_thinking": True, "reasoning_effort": "low", "tokenize": True, "add_generation_prompt": False},
        )
        == plain
    )


def test_system_messages_in_place_keep_the_prefix(renderer: Renderer) -> None:
    """A later system message doesn't change what stands before it."""
    longer = [
        *HEAD,
        {"role": "assistant", "content": "a1"},
        {"role": "system", "content": "note"},
        {"role": "user", "content": "q2"},
    ]
    text = renderer.decode(renderer.render(longer, (), {}))
    assert "a1<|im_end|>\n<|im_start|>system\nnote<|im_end|>\n" in text


def test_a_reply_and_its_extension(renderer: Renderer) -> None:
    """What was sampled is parsed, and the next prompt keeps every sampled token in front of the new turn only."""
    prompt = renderer.render(HEAD, TOOLS, {})
    ids = renderer.encode(SAMPLED)
    shown, reply = run_parser(renderer, prompt, ids)
    assert (shown, reply.reasoning, reply.text, reply.status) == ("hmmOk.", "hmm", "Ok.", "ok")
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("ls", '{"p":"ü",  "n":1.0}')]
    start, end = reply.tool_calls[0].span
    assert renderer.decode(ids[start:end]) == '<tool_call>\n{"name":"ls","arguments":{"p":"ü",  "n":1.0}}\n</tool_call>'
    longer = renderer.extend(prompt, ids, [*HEAD, ANSWER, RESULT], new_from=3, tools=TOOLS, template_kwargs={})
    assert longer is not None
    assert longer[: len(prompt) + len(ids)] == [*prompt, *ids]
    tail = renderer.decode(longer[len(prompt) + len(ids) :])
    assert tail == "\n<|im_start|>user\n<tool_response>\na.txt\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


def test_a_new_question_after_thinking_keeps_the_sampled_tokens(renderer: Renderer) -> None:
    """The template would drop the old thinking; the extension doesn't."""
    prompt = renderer.render(HEAD, (), {})
    ids = renderer.encode("<think>\nhmm\n</think>\n\nhi<|im_end|>")
    history = [
        *HEAD,
        {"role": "assistant", "content": "hi", "reasoning_content": "hmm"},
        {"role": "user", "content": "<|x|> more"},
    ]
    longer = renderer.extend(prompt, ids, history, new_from=3, tools=(), template_kwargs={})
    assert longer is not None
    assert longer[: len(prompt) + len(ids)] == [*prompt, *ids]
    assert (
        renderer.decode(longer[len(prompt) + len(ids) :])
        == "\n<|im_start|>user\n<|x|> more<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_cut_turn_is_closed(renderer: Renderer) -> None:
    """A reply that hit its limit, even inside thinking, gets the end-of-turn token and keeps its own tokens."""
    prompt = renderer.render(HEAD, (), {})
    for cut in ("half an ans", "<think>\nhalf a thou"):
        ids = renderer.encode(cut)
        history = [
            *HEAD,
            {"role": "assistant", "content": "whatever the client sends"},
            {"role": "user", "content": "go on"},
        ]
        longer = renderer.extend(prompt, ids, history, new_from=3, tools=(), template_kwargs={})
        assert longer is not None
        assert longer[: len(prompt) + len(ids)] == [*prompt, *ids]
        tail = renderer.decode(longer[len(prompt) + len(ids) :])
        assert tail.endswith("<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n")


def test_text_that_looks_like_a_turns_end_does_not_fool_the_extension(template: TemplateRenderer) -> None:
    """The answer's own content plays no part in finding where the new turn begins."""
    prompt = template.render(HEAD, TOOLS, {})
    evil = {
        **ANSWER,
        "content": "say <|im_end|>",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"p":"<|im_end|>x"}'}}],
    }
    ids = template.encode("x<|im_end|>")
    longer = template.extend(prompt, ids, [*HEAD, evil, RESULT], new_from=3, tools=TOOLS, template_kwargs={})
    assert longer is not None
    assert template.decode(longer[len(prompt) + len(ids) :]).startswith("\n<|im_start|>user\n<tool_response>")


def test_no_extension_where_there_is_no_answer(renderer: Renderer) -> None:
    """Nothing new, or no answer before what is new: render from text."""
    assert renderer.extend([1], [2], HEAD, new_from=2, tools=(), template_kwargs={}) is None
    assert renderer.extend([1], [2], HEAD, new_from=1, tools=(), template_kwargs={}) is None


def test_stops(renderer: Renderer) -> None:
    """Both ends of Qwen3, the canonical one first."""
    assert renderer.end_of_turn_id == 151_645
    assert renderer.stop_token_ids[0] == 151_645
    assert 151_643 in renderer.stop_token_ids or renderer.name == "template"


def test_a_prompt_that_opens_thinking_is_noticed(template: TemplateRenderer) -> None:
    """The parser starts inside the block, unless it is closed again."""
    assert template.is_in_reasoning(template.encode("<|im_start|>assistant\n<think>\n"))
    assert not template.is_in_reasoning(template.encode("<|im_start|>assistant\n<think>\n\n</think>\n\n"))
    assert not template.is_in_reasoning(template.encode("about <think> he said<|im_end|>\n<|im_start|>assistant\n"))


def test_a_truncated_call_in_history_renders(renderer: Renderer) -> None:
    """Half a JSON text is an opaque string in the prompt, not an error for ever."""
    broken = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "w", "arguments": '{"p":"/a'}}],
    }
    assert '{"p":"/a' in renderer.decode(renderer.render([*HEAD, broken, RESULT], TOOLS, {}))


def strict(template: TemplateRenderer, rule: str) -> TemplateRenderer:
    """A renderer whose template raises where the rule (in the template language, on `messages`) is broken."""
    source = (
        "{%- if not ("
        + rule
        + ") %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
        + template._template.source
    )
    return TemplateRenderer(template.tokenizer, ChatTemplate(source, template.tokenizer.special_tokens))


def test_strict_templates_get_plainer_conversations(template: TemplateRenderer) -> None:
    """System turns become user text only where the template forbids them, and string arguments objects."""
    late_system = strict(template, "messages[1:] | selectattr('role', 'equalto', 'system') | list | length == 0")
    text = late_system.decode(late_system.render([*HEAD, {"role": "system", "content": "note"}], (), {}))
    assert "user\ngo\n<system>\nnote\n</system><|im_end|>" in text
    rule = "(messages | selectattr('tool_calls', 'defined') | list | length == 0) or messages[2].tool_calls[0].function.arguments is mapping"
    objects = strict(template, rule)
    broken = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "w", "arguments": "{"}}],
    }
    assert '{"_unparsed": "{"}' in objects.decode(objects.render([*HEAD, broken, RESULT], (), {}))


def test_a_template_that_refuses_everything_is_the_clients_error(template: TemplateRenderer) -> None:
    """A 400 with the template's own words."""
    with pytest.raises(ProxyError, match="must alternate") as raised:
        strict(template, "false").render(HEAD, (), {})
    assert raised.value.kind == "bad_request"
