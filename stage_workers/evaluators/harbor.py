"""`harbor`: a task's own verifier (`tests/test.sh`) in the session's runtime, and the reward that it writes.

The task format of the Harbor framework: the tests are uploaded after the agent has finished, run in its container, and write
`/logs/verifier/reward.txt` (one number) or `/logs/verifier/reward.json` (numbers by name).
"""

from __future__ import annotations

import base64
import json
import math
import posixpath
import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import ClassVar

from stage_workers.evaluators.base import (
    EvaluationContext,
    EvaluatorError,
    Grade,
    OptionKind,
    Place,
    bytes_of,
    check_options,
    mapping_option,
    seconds_option,
    text_option,
)
from stage_workers.evaluators.patches import shell
from stage_workers.runtimes import Runtime, RuntimeFault

TESTS, LOGS = "/tests", "/logs/verifier"
"""Where the format has them."""

REWARD = "reward"
_SAID_CHARACTERS = 400
_REWARD_BYTES = 1024 * 1024


class HarborEvaluator:
    """Runs a Harbor task's verifier. `docs/evaluators.md` lists the options."""

    NAME: ClassVar[str] = "harbor"
    VERSION: ClassVar[str] = "1"
    PLACE: ClassVar[Place] = "session"
    OPTIONS: ClassVar[Mapping[str, OptionKind]] = {
        "tests": "mapping",
        "env": "mapping",
        "workdir": "text",
        "timeout_s": "seconds",
        "reward": "text",
    }

    def __init__(self, options: Mapping[str, object]) -> None:
        check_options(self.NAME, options, self.OPTIONS)
        self._tests = {path: _content(path, value) for path, value in mapping_option(options, "tests").items()}
        if "test.sh" not in self._tests:
            raise EvaluatorError("evaluator.options.tests: must hold the file test.sh")
        self._env = {name: str(value) for name, value in mapping_option(options, "env").items()}
        self._workdir = text_option(options, "workdir", ".")
        self._timeout_s = seconds_option(options, "timeout_s", 600.0)
        self._reward = text_option(options, "reward", REWARD)

    async def evaluate(self, context: EvaluationContext) -> list[Grade]:
        """One grade for each number that the verifier wrote.

        Raises:
            EvaluatorError: it took too long, or wrote none.
        """
        runtime = context.left_runtime
        is_local = context.task.runtime.kind == "local"
        tests, logs = (posixpath.join(runtime.home, "harbor", "tests"), posixpath.join(runtime.home, "harbor", "logs"))
        if not is_local:
            tests, logs = TESTS, LOGS
        # Whatever the agent put there isn't a test, and no reward either.
        emptied = " ".join(map(shlex.quote, (tests, logs)))
        made = await shell(runtime, f"rm -rf -- {emptied} && mkdir -p -- {emptied}", timeout_s=30.0)
        if not made.succeeded:
            raise EvaluatorError(f"{tests} and {logs} could not be made: {made.tail()}")
        try:
            for path, content in self._tests.items():
                # On this machine's own file system they live in the session's home, and scripts are told so.
                data = relocated(content, {TESTS: tests, LOGS: logs}) if is_local else content
                await runtime.upload(posixpath.join(tests, path), data, 0o755 if path.endswith(".sh") else 0o644)
            result = await runtime.exec(
                [
                    "/bin/sh",
                    "-c",
                    f"if command -v bash >/dev/null; then exec bash {_SCRIPT}; else exec sh {_SCRIPT}; fi",
                ],
                timeout_s=self._timeout_s,
                env={**self._env, "TEST_SCRIPT": posixpath.join(tests, "test.sh"), "TEST_DIR": tests},
                cwd=posixpath.normpath(posixpath.join(runtime.workdir, self._workdir)),
                keep_bytes=4 * 1024 * 1024,
            )
        except RuntimeFault as error:
            raise EvaluatorError(f"the verifier could not be run: {error}") from error
        await context.artifacts.keep("test_output.log", result.stdout + result.stderr)
        if result.timed_out:
            raise EvaluatorError(f"the verifier was still running after {self._timeout_s:g} s: {result.tail()}")
        written = {name: await _read(runtime, posixpath.join(logs, name)) for name in ("reward.json", "reward.txt")}
        for name, found in written.items():
            if found is not None:
                await context.artifacts.keep(name, found)
        values = rewards_in(written["reward.txt"], written["reward.json"])
        if not values:
            raise EvaluatorError(
                f"the verifier wrote neither reward.txt nor reward.json; it exited with {result.exit_code}: {result.tail()}"
            )
        details = {"exit_code": result.exit_code, "said": result.tail(_SAID_CHARACTERS)}
        names = {REWARD: self._reward}
        return [Grade(name=names.get(name, name), value=value, details=details) for name, value in values.items()]


_SCRIPT = '"$TEST_SCRIPT"'


def rewards_in(text: bytes | None, named: bytes | None) -> dict[str, float]:
    """The numbers of the two files, `reward` first. Raises EvaluatorError for a file that holds something else."""
    values: dict[str, float] = {}
    if text is not None:
        values[REWARD] = _number("reward.txt", text.decode("utf-8", "replace").strip())
    if named is not None:
        try:
            plain = json.loads(named)
        except (ValueError, RecursionError) as error:
            raise EvaluatorError(f"reward.json is no JSON: {error}") from error
        if not isinstance(plain, Mapping):
            plain = {REWARD: plain}
        values |= {str(name): _number(f"reward.json, {name}", value) for name, value in plain.items()}
    return dict(sorted(values.items(), key=lambda item: item[0] != REWARD))


def _number(where: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever it is, it is a number or an error
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise EvaluatorError(f"{where}: {value!r} is no finite number")
    return number


def relocated(content: bytes, places: Mapping[str, str]) -> bytes:
    """A text with absolute paths replaced where they begin a path of their own; bytes that are no text stay."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content
    for old, new in places.items():
        text = re.sub(rf"(?<![\w./-]){re.escape(old)}(?![\w.-])", lambda _, new=new: new, text)  # type: ignore[misc]
    return text.encode()


def _content(path: str, value: object) -> bytes:
    where = f"evaluator.options.tests.{path}"
    inside = PurePosixPath(path)
    if inside.is_absolute() or ".." in inside.parts:
        raise EvaluatorError(f"{where}: must be a path inside the tests' folder")
    if isinstance(value, str):
        return bytes_of(value, where)
    if isinstance(value, Mapping) and isinstance(value.get("base64"), str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError as error:
            raise EvaluatorError(f"{where}: is no base64: {error}") from error
    raise EvaluatorError(f"{where}: must be a text, or {{base64: …}}")


async def _read(runtime: Runtime, path: str) -> bytes | None:
    try:
        return await runtime.download(path, _REWARD_BYTES)
    except RuntimeFault:
        return None
