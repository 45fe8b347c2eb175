"""The tiny model's tokenizer and chat template, and the ids of prompts and demonstrations."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

import orjson

from compose.demo.family import ALL, FILES, TRAINED, WORDS, Combination
from compose.demo.warm_start.demonstrations import FAREWELL, Demonstration, demonstrate, directories
from compose.demo.warm_start.wire import Wire

END_OF_TEXT: Final = "<|endoftext|>"
START_OF_TURN: Final = "<|im_start|>"
END_OF_TURN: Final = "<|im_end|>"
SPECIAL: Final = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)
MARKS: Final = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
# What every call has, as one token each: a reply is a dozen tokens instead of thirty, and a session that much cheaper.
CALL_PIECES: Final = (
    '{"name": "write", "arguments": {"path": "',
    '{"name": "read", "arguments": {"path": "',
    '", "content": "',
    '"}}',
)
VOCABULARY: Final = 900
"""Learned tokens; the added ones come on top."""
_TEMPLATE: Final = "chat_template.jinja"


def template_text() -> str:
    """The chat template's source."""
    return resources.files("compose.demo.warm_start").joinpath(_TEMPLATE).read_text()


def write_tokenizer(directory: Path, wire: Wire, seed: int) -> None:
    """Trains the tokenizer on rendered prompts and demonstrations; writes it and the template into `directory`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_corpus(wire, seed), trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*MARKS, *CALL_PIECES, *WORDS, *FILES)])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2) + b"\n")
    with resources.as_file(resources.files("compose.demo.warm_start").joinpath(_TEMPLATE)) as source:
        shutil.copyfile(source, directory / _TEMPLATE)


def _corpus(wire: Wire, seed: int) -> Iterator[str]:
    from capture_proxy.rendering.jinja import ChatTemplate

    template = ChatTemplate(template_text(), {})
    rng = random.Random(seed)  # noqa: S311 - a repeatable corpus, no secret
    directory = directories(rng)
    for combination in ALL:
        place = directory()
        yield template.render(wire.messages(combination, place), wire.tools, {})
        for _ in range(8):
            shown = demonstrate(rng, combination, wire, place, 0.5)
            yield shown.answer
            yield shown.tool_answer
        yield FAREWELL


@dataclass(frozen=True, slots=True)
class Example:
    """One session's ids; `mask` is 1 where the model would have sampled."""

    ids: list[int]
    mask: list[int]


class Ids:
    """Prompts and demonstrations as ids, by the renderer that the capture proxy uses for such a directory."""

    def __init__(self, directory: Path, wire: Wire) -> None:
        from capture_proxy.rendering import load_renderer

        self._renderer = load_renderer(directory)
        self._wire = wire
        assert self._renderer.end_of_turn_id is not None
        self.end_of_turn: int = self._renderer.end_of_turn_id
        self._start_of_turn: int = self._renderer.encode(START_OF_TURN)[0]
        self._encoded: dict[str, list[int]] = {}
        self._questions: dict[Combination, list[int]] = {}

    def head(self, place: str, *, with_tools: bool = True) -> list[int]:
        """The beginning of every prompt in `place`: all of it but the question and what opens the answer."""
        prompt = self._render(TRAINED[0], place, with_tools=with_tools)
        return prompt[: self._question_at(prompt)]

    def question(self, combination: Combination) -> list[int]:
        """What follows the head: it doesn't depend on the place."""
        if combination not in self._questions:
            prompt = self._render(combination, "/")
            self._questions[combination] = prompt[self._question_at(prompt) :]
        return self._questions[combination]

    def answer(self, text: str) -> list[int]:
        """The ids of an answer, its end included."""
        return [*self._encode(text), self.end_of_turn]

    def example(self, head: list[int], combination: Combination, shown: Demonstration, *, is_whole: bool) -> Example:
        """A demonstrated session: the answer and, where it is whole and a tool was called, the farewell after the tool's result."""
        prompt, answer = [*head, *self.question(combination)], self.answer(shown.answer)
        ids, mask = prompt + answer, [0] * len(prompt) + [1] * len(answer)
        if shown.tool_answer and is_whole:
            heard = self._encode(
                f"\n{START_OF_TURN}user\n<tool_response>\n{shown.tool_answer}\n</tool_response>{END_OF_TURN}\n"
                f"{START_OF_TURN}assistant\n"
            )
            farewell = self.answer(FAREWELL)
            ids, mask = ids + heard + farewell, mask + [0] * len(heard) + [1] * len(farewell)
        return Example(ids, mask)

    def text(self, ids: list[int]) -> str:
        """Text of ids, special tokens included."""
        return self._renderer.decode(ids)

    def _render(self, combination: Combination, place: str, *, with_tools: bool = True) -> list[int]:
        tools = self._wire.tools if with_tools else ()
        return self._renderer.render(self._wire.messages(combination, place), tools, {})

    def _question_at(self, prompt: list[int]) -> int:
        turns = [n for n, token in enumerate(prompt) if token == self._start_of_turn]
        return turns[-2]

    def _encode(self, text: str) -> list[int]:
        if text not in self._encoded:
            self._encoded[text] = self._renderer.encode(text)
        return self._encoded[text]
