"""What Pi sends, taken from the installed Pi itself: the prompts are its maker's, so they are looked up and never stored here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import harnesses
from capture_proxy.rendering.prepare import for_template
from capture_proxy.reply import ChatRequest
from compose.demo.family import PI_OPTIONS, Combination
from compose.errors import CommandError
from compose.trial.recorder import Script, recording
from compose.trial.script import Call, Step
from compose.trial.session import run_harness

# Stand for what differs between sessions, in texts that are filled in again later.
DIRECTORY: Final = "\u2063directory\u2063"
INSTRUCTION: Final = "\u2063instruction\u2063"
FILE: Final = "\u2063file\u2063"
CONTENT: Final = "\u2063content\u2063"
_SECRET = "opens-nothing"  # noqa: S105 - a recorder of our own
_PROBE = Combination("quartz", "basalt.txt")  # no words of the family's: they would be found elsewhere in a prompt, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """Pi's first request and its tools' answers, with stand-ins for directory, instruction, file and content."""

    system: str
    tools: Sequence[Mapping[str, Any]]
    written: str
    """What follows a call of `write`."""
    unread: str
    """What follows a call of `read` for a file that isn't there."""

    def messages(self, combination: Combination, directory: str) -> list[dict[str, Any]]:
        """The first request's messages for a combination in a working directory."""
        return [
            {"role": "system", "content": self.system.replace(DIRECTORY, directory)},
            {"role": "user", "content": combination.instruction},
        ]

    def answer_to_write(self, file: str, content: str, directory: str) -> str:
        """What the tool says after a file was written."""
        return _filled(self.written, file, content, directory)

    def answer_to_read(self, file: str, directory: str) -> str:
        """What the tool says of a file that isn't there."""
        return _filled(self.unread, file, "", directory)


async def capture(report: Callable[[str], None]) -> Wire:
    """Runs the installed Pi once against an endpoint of our own and reads off what it sent.

    Raises:
        HarnessError: Pi can't be installed or started.
        CommandError: it didn't do what its tools are asked for.
    """
    adapter = harnesses.get("pi")
    async with recording(script=_script()) as (address, recorder):
        run = await run_harness(
            adapter,
            PI_OPTIONS,
            instruction=_PROBE.instruction,
            urls=harnesses.base_urls(address, _SECRET, adapter.url_form),
            secret=_SECRET,
            report=report,
        )
    asked = [exchange.request for exchange in recorder.exchanges if exchange.request is not None]
    if len(asked) != 3:
        raise CommandError(f"Pi made {len(asked)} model calls instead of 3: {run.verdict.error or run.result.tail()}")
    return _read_off(asked)


def _script() -> Script:
    calls = (
        Call("read", {"path": _PROBE.file}),
        Call("write", {"path": _PROBE.file, "content": _PROBE.word}),
    )

    def step(tools: Sequence[Mapping[str, Any]], turn: int, conversation: str) -> Step:
        del tools, conversation
        return Step("", (calls[turn],)) if turn < len(calls) else Step("Done.")

    return step


def _read_off(asked: Sequence[ChatRequest]) -> Wire:
    first, last = for_template(asked[0].messages), for_template(asked[-1].messages)
    system, instruction = first[0], first[1]
    if len(first) != 2 or system["role"] != "system" or instruction["content"] != _PROBE.instruction:
        raise CommandError(f"Pi's first request isn't a system message and the instruction: {json.dumps(first)[:400]}")
    directory = _between(system["content"], "<cwd>", "</cwd>").strip()
    unread, written = (message["content"] for message in last if message["role"] == "tool")

    def marked(text: str) -> str:
        text = text.replace(directory, DIRECTORY) if directory else text
        return text.replace(_PROBE.file, FILE).replace(_PROBE.word, CONTENT)

    return Wire(system=marked(system["content"]), tools=asked[0].tools, written=marked(written), unread=marked(unread))


def _between(text: str, opening: str, closing: str) -> str:
    return text.partition(opening)[2].partition(closing)[0]


def _filled(text: str, file: str, content: str, directory: str) -> str:
    return text.replace(FILE, file).replace(CONTENT, content).replace(DIRECTORY, directory)
