"""A scripted policy for the examples, so that they run without a model that can do anything.

    polynya up --detach --engine scripted:examples.policy:reply      # in the project's directory

It writes the text of each reply; ids and logprobs still come from a tokenizer and a (tiny, random) model. With a real model behind
`--engine-url` the examples are the same.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ASSISTANT = "<|im_start|>assistant\n"
INSTANCES = Path(__file__).parent / "swe_gym" / "instances.yaml"
WORD = re.compile(r"Write the word (\w+) to ([\w./-]+?)\.(?=[\s<])")
_tries: dict[str, Iterator[bool]] = {}


def call(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call in the form that the Qwen3 template teaches."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': dict(arguments)})}\n</tool_call>"


def reply(prompt: str, request: Mapping[str, Any]) -> str:
    """The text of the next turn."""
    del request
    return answer(prompt) or "Hello."


def answer(prompt: str) -> str | None:
    """What the policy says in a session of these examples; None in any other."""
    turn = prompt.count(ASSISTANT) - 1
    for issue in issues():
        if issue["problem_statement"].strip().splitlines()[0] in prompt:
            return mend(issue, prompt, turn)
    found = WORD.search(prompt)
    if found and '"name": "write_file"' in prompt:
        return write(found.group(1), found.group(2), turn, twice="twice" in prompt)
    return None


@functools.cache
def issues() -> list[dict[str, Any]]:
    """The issues of examples/swe_gym."""
    made: list[dict[str, Any]] = yaml.safe_load(INSTANCES.read_text())["instances"]
    return made


def mend(issue: Mapping[str, Any], prompt: str, turn: int) -> str:
    """Looks, and mends in every other session; in the others it only believes that it has."""
    if turn == 0:
        is_right = next(_tries.setdefault(issue["instance_id"], itertools.cycle([True, False])))
        return ("I look at it.\n" if is_right else "I see it.\n") + call("bash", {"command": f"cat {issue['file']}"})
    if turn == 1 and "I look at it." in prompt:
        lines = (
            "import pathlib",
            f"path = pathlib.Path({issue['file']!r})",
            f"path.write_text(path.read_text().replace({issue['bug']!r}, {issue['right']!r}))",
        )
        return "I mend it.\n" + call("bash", {"command": "python3 - <<'END'\n" + "\n".join(lines) + "\nEND"})
    return "It is mended."


def write(word: str, path: str, turn: int, *, twice: bool) -> str:
    """Writes the word, once more where the task says twice, and ends."""
    if turn < (2 if twice else 1):
        return call("write_file", {"path": path, "content": f"{word}\n"})
    return "Done."
