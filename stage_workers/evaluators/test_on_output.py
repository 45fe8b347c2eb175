"""`test_on_output`: a test command's output, test by test, against what is expected of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from stage_workers.evaluators.base import (
    EvaluationContext,
    EvaluatorError,
    Grade,
    OptionKind,
    check_options,
    choice_option,
    seconds_option,
    text_option,
)
from stage_workers.evaluators.log_parsers import PARSERS, Statuses
from stage_workers.evaluators.patches import PATCH, PatchOptions, apply_patch, directory, head_of, patch_of
from stage_workers.runtimes import Runtime, RuntimeFault

TEST_LOG = "test_output.log"
_NAMES_IN_DETAILS = 50


class TestOnOutputEvaluator:
    """1.0 where the tests in the output of `command` end as `expected` says, else 0.0.

    In the session's runtime; in a fresh one (`fresh: true`) on top of the agent's patch. `docs/evaluators.md` lists the options.
    """

    __test__: ClassVar[bool] = False  # not for pytest
    NAME: ClassVar[str] = "test_on_output"
    VERSION: ClassVar[str] = "1"
    OPTIONS: ClassVar[Mapping[str, OptionKind]] = {
        "command": "text",
        "expected": "mapping",
        "log_parser": "text",
        "match": "text",
        "test_timeout_s": "seconds",
        "reward": "text",
        **PatchOptions.OPTIONS,
    }

    def __init__(self, options: Mapping[str, object]) -> None:
        check_options(self.NAME, options, self.OPTIONS)
        self._command = text_option(options, "command")
        self._expected = _expected(options.get("expected"))
        self._parse = PARSERS[choice_option(options, "log_parser", tuple(PARSERS))]
        self._is_exact = choice_option(options, "match", ("exact", "subset")) == "exact"
        self._test_timeout_s = seconds_option(options, "test_timeout_s", 1200.0)
        self._reward = text_option(options, "reward", "reward")
        self._patch = PatchOptions.of({"repo_dir": ".", **options})

    async def evaluate(self, context: EvaluationContext) -> list[Grade]:
        """One grade. Raises EvaluatorError when the command can't be run, or the patch can't be had."""
        if context.fresh is not None and (refusal := await self._bring_patch(context, context.fresh)) is not None:
            return [Grade(name=self._reward, value=0.0, details=refusal)]
        place = context.place
        try:
            result = await place.exec(
                ["/bin/sh", "-c", f"exec 2>&1\n{self._command}"],
                timeout_s=self._test_timeout_s,
                cwd=directory(place, self._patch.repo_dir),
                keep_bytes=16 * 1024 * 1024,
            )
        except RuntimeFault as error:
            raise EvaluatorError(f"the command could not be run: {error}") from error
        await context.artifacts.keep(TEST_LOG, result.stdout)
        found = self._parse(result.stdout.decode("utf-8", "replace"))
        if not found and result.exit_code in {126, 127}:
            raise EvaluatorError(f"the command could not be run (exit code {result.exit_code}): {result.tail()}")
        wrong = differences(found, self._expected, is_exact=self._is_exact)
        details = {
            "exit_code": result.exit_code,
            "test_timeout": result.timed_out,
            "expected": len(self._expected),
            "found": len(found),
            "different": len(wrong),
            "differences": dict(sorted(wrong.items())[:_NAMES_IN_DETAILS]),
        }
        return [Grade(name=self._reward, value=1.0 if not wrong and not result.timed_out else 0.0, details=details)]

    async def _bring_patch(self, context: EvaluationContext, fresh: Runtime) -> dict[str, object] | None:
        """Puts the agent's changes into the fresh runtime; why there is nothing to test, or None."""
        patch = await patch_of(context, self._patch, await head_of(fresh, self._patch))
        if patch is None:
            return {"patch_exists": True, "patch_too_large": True, "failed_apply_patch": True}
        await context.artifacts.keep(PATCH, patch)
        if not patch.strip():
            return {"patch_exists": False, "empty_generation": True}
        applied = await apply_patch(fresh, self._patch, patch, PATCH)
        return None if applied.by else {"patch_exists": True, "failed_apply_patch": True, "said": applied.said}


def differences(found: Statuses, expected: Statuses, *, is_exact: bool) -> dict[str, list[str | None]]:
    """Tests that ended otherwise: [expected, found], None where there is none. Unless `is_exact`, others don't matter.

    A parser knows a name with blanks in it by its first word, too: where one of the two is expected, the other is no other test.
    """
    cut = {_first_word(name) for name in expected}
    others = {name for name in found if name not in cut and _first_word(name) not in expected} if is_exact else set()
    names = set(expected) | others
    return {name: [expected.get(name), found.get(name)] for name in names if expected.get(name) != found.get(name)}


def _first_word(name: str) -> str:
    return (name.split(maxsplit=1) or [name])[0]


def _expected(value: object) -> Statuses:
    """A mapping of tests to statuses; also as a JSON text, which is how some data sets have it."""
    where = "evaluator.options.expected"
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise EvaluatorError(f"{where}: is no JSON: {error}") from error
    if not isinstance(value, Mapping) or not value:
        raise EvaluatorError(f"{where}: must map tests to PASSED, FAILED, ERROR or SKIPPED")
    return {str(name): str(status) for name, status in value.items()}
