"""The shipped checkpoint: its size, its page, and that prompts of one session begin with what was said before."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from capture_proxy.rendering import load_renderer
from capture_proxy.rendering.base import Renderer
from compose.demo.family import FILES, MAX_TOKENS, WORDS
from compose.demo.warm_start.demonstrations import call
from compose.demo.warm_start.tokens import template_text
from trainer_sink.policies.digest import digest_of

MODEL = Path(str(importlib.util.find_spec("compose.demo").submodule_search_locations[0])) / "model"  # type: ignore[union-attr, index]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"To {name}.", "parameters": {"type": "object"}}}
    for name in ("write", "read")
]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    """What the capture proxy renders with."""
    return load_renderer(MODEL)


def messages(directory: str, instruction: str) -> list[dict[str, object]]:
    """A first request in the form of Pi's."""
    return [
        {"role": "system", "content": f"Be an agent.\n\n<cwd>\n{directory}\n</cwd>"},
        {"role": "user", "content": [{"type": "text", "text": instruction}]},
    ]


def test_it_is_small_and_its_page_names_its_weights() -> None:
    """Under 2 MB with everything; the card's digest is that of the weights beside it."""
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 2_000_000
    assert digest_of(MODEL) in (MODEL / "README.md").read_text()
    assert json.loads((MODEL / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]
    assert (MODEL / "chat_template.jinja").read_text() == template_text()


def test_words_and_files_are_one_token_each_wherever_they_stand(renderer: Renderer) -> None:
    """In the instruction as in the call: to copy one is to point at it. A whole call fits many times into a reply."""
    for text in (*WORDS, *FILES):
        (token,) = renderer.encode(text)
        assert token in renderer.encode(f"Write the word {text} to {text}.")
        assert token in renderer.encode(call("write", path=text, content=text))
    assert len(renderer.encode(call("write", path=FILES[0], content=WORDS[0]))) + 1 == 10 < MAX_TOKENS


def test_prompts_begin_alike_up_to_the_working_directory(renderer: Renderer) -> None:
    """The tools stand before the system message, in which the directory is: engines' caches hold them for all sessions."""
    one, other = (renderer.decode(renderer.render(messages(path, "Go."), TOOLS, {})) for path in ("/a/1", "/b/2"))
    common = one[: next(n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)]
    assert common.endswith("<cwd>\n/")
    assert all(f'"name": "{name}"' in common for name in ("write", "read"))


def test_a_second_prompt_goes_on_from_the_sampled_tokens(renderer: Renderer) -> None:
    """The call is parsed, and what the harness sends back of it renders to the very tokens that were sampled."""
    first = messages("/w", "Write the word delta to notes.txt.")
    prompt = renderer.render(first, TOOLS, {})
    output = [*renderer.encode(call("write", path="notes.txt", content="delta")), renderer.end_of_turn_id]
    parser = renderer.parser(prompt, is_parsing_tools=True, tools=TOOLS)
    parser.feed(output)
    _, reply = parser.finish()
    (parsed,) = reply.tool_calls
    assert (parsed.name, json.loads(parsed.arguments)) == ("write", {"path": "notes.txt", "content": "delta"})
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c",
                "type": "function",
                "function": {"name": "write", "arguments": '{"path":"notes.txt","content":"delta"}'},
            }
        ],
    }
    conversation = [*first, said, {"role": "tool", "tool_call_id": "c", "content": "Written."}]
    extended = renderer.extend(prompt, output, conversation, new_from=3, tools=TOOLS, template_kwargs={})
    assert extended is not None
    assert extended[: len(prompt) + len(output)] == [*prompt, *output]
    assert renderer.decode(extended) == renderer.decode(renderer.render(conversation, TOOLS, {}))


def test_a_broken_call_stays_text(renderer: Renderer) -> None:
    """What the noisy start writes now and then ends the session; it calls nothing."""
    text = call("write", path="notes.txt", content="delta").replace('"}}', '"}')
    parser = renderer.parser(renderer.render(messages("/w", "Go."), TOOLS, {}), is_parsing_tools=True, tools=TOOLS)
    parser.feed([*renderer.encode(text), renderer.end_of_turn_id])
    _, reply = parser.finish()
    assert reply.tool_calls == ()
    assert "delta" in reply.text
