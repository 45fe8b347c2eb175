"""The demo's scripted policy, as a function of the prompt."""

from __future__ import annotations

import json

import pytest

from compose.demo.policy import CHARACTERS, reply

HEAD = '<|im_start|>system\n{"name": "write"} {"name": "bash"}<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n'
ASK = "<|im_start|>assistant\n"


def play(head: str, program_prints: dict[str, str]) -> list[str]:
    """The replies until the policy stops calling tools; `program_prints` maps written contents to the test's output."""
    prompt, said, content = head + ASK, [], ""
    for _ in range(8):
        text = reply(prompt, {})
        said.append(text)
        if "<tool_call>" not in text:
            return said
        call = json.loads(text.partition("<tool_call>")[2].partition("</tool_call>")[0])
        content = call["arguments"].get("content", content)
        answer = "written" if "content" in call["arguments"] else program_prints[content]
        prompt += f"{text}<|im_end|>\n<|im_start|>user\n<tool_response>\n{answer}\n</tool_response><|im_end|>\n{ASK}"
    raise AssertionError("the policy never stops")


def outputs(text: str) -> str:
    """What a written program prints for three words of 13 characters."""
    return "3" if "split" in text else "13"


@pytest.mark.parametrize("head", [HEAD, HEAD.replace("write", "Write").replace("bash", "Bash")])
def test_each_character_ends_and_only_the_careless_one_leaves_the_mistake(head: str) -> None:
    """Of four sessions, three end with the right program and one with the wrong one."""
    prints = {
        c: outputs(c)
        for c in (
            "import sys\n\nprint(len(sys.stdin.read().split()))\n",
            "import sys\n\nprint(len(sys.stdin.read()))\n",
        )
    }
    sessions = [play(head, prints) for _ in CHARACTERS]
    counted = sorted("counts three words" in s[-1] for s in sessions)
    assert counted == [False, True, True, True]
    assert sorted(len(s) for s in sessions) == [3, 3, 3, 5]


def test_claude_code_gets_an_absolute_path() -> None:
    """Write wants an absolute path: the working directory that the prompt names."""
    head = HEAD.replace("write", "Write").replace("go<", "Primary working directory: /srv/here\ngo<")
    assert '"file_path": "/srv/here/wordcount.py"' in reply(head + ASK, {})
