"""`swebench`: the agent's patch in a fresh runtime, the benchmark's tests on top of it, and which of them pass."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import orjson

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
from stage_workers.evaluators.log_parsers import PARSERS, PASSING, Statuses
from stage_workers.evaluators.patches import (
    PATCH,
    PatchOptions,
    apply_patch,
    directory,
    head_of,
    patch_of,
    paths_of,
    sections,
    shell,
)
from stage_workers.evaluators.swe_repos import command_of, rule_of
from stage_workers.runtimes import ExecResult, Runtime, RuntimeFault

TEST_LOG, REPORT = "test_output.log", "report.json"
"""The artifacts, beside the patch."""

# The benchmarks' images keep their environment in conda; elsewhere this does nothing.
SETUP = """if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate && conda activate testbed; fi"""
_BEGIN, _END = ">>>>> Start Test Output", ">>>>> End Test Output"
_NAMES_IN_DETAILS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Tests of one kind that did what they should, and those that didn't."""

    success: list[str] = field(default_factory=list)
    failure: list[str] = field(default_factory=list)

    @property
    def brief(self) -> dict[str, Any]:
        """Fit for a fact's details: thousands of names stand in the report, not there."""
        return {"passed": len(self.success), "failed": len(self.failure), "failures": self.failure[:_NAMES_IN_DETAILS]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is told of a grading. The flags' names are those that SWE-bench's and Polar's reports have."""

    patch_exists: bool = False
    empty_generation: bool = False
    patch_too_large: bool = False
    patch_successfully_applied: bool = False
    failed_apply_patch: bool = False
    applied_by: str = ""
    error_eval: bool = False
    test_timeout: bool = False
    exit_code: int | None = None
    resolved: bool = False
    said: str = ""
    fail_to_pass: Tally = field(default_factory=Tally)
    pass_to_pass: Tally = field(default_factory=Tally)

    def as_details(self, *, brief: bool) -> dict[str, Any]:
        """As JSON: the whole one for the artifact, the brief one for facts."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, tally in (("FAIL_TO_PASS", plain.pop("fail_to_pass")), ("PASS_TO_PASS", plain.pop("pass_to_pass"))):
            plain[name] = tally.brief if brief else {"success": tally.success, "failure": tally.failure}
        return plain


class SwebenchEvaluator:
    """Rows of SWE-bench, SWE-Gym and SkyRL-v0-293. `docs/evaluators.md` lists the options."""

    NAME: ClassVar[str] = "swebench"
    VERSION: ClassVar[str] = "1"
    PLACE: ClassVar[Place] = "fresh"
    OPTIONS: ClassVar[Mapping[str, OptionKind]] = {
        "instance": "mapping",
        "test_command": "text",
        "setup": "text",
        "log_parser": "text",
        "test_timeout_s": "seconds",
        "reward": "text",
        **PatchOptions.OPTIONS,
    }

    def __init__(self, options: Mapping[str, object]) -> None:
        check_options(self.NAME, options, self.OPTIONS)
        instance = mapping_option(options, "instance", required=True)
        self._repo = str(instance.get("repo") or "")
        self._test_patch = bytes_of(_text(instance, "test_patch"), "evaluator.options.instance.test_patch")
        self._fail_to_pass = _tests(instance, "FAIL_TO_PASS")
        self._pass_to_pass = _tests(instance, "PASS_TO_PASS")
        if not self._fail_to_pass and not self._pass_to_pass:
            raise EvaluatorError("evaluator.options.instance: FAIL_TO_PASS and PASS_TO_PASS name no test at all")
        self._patch = PatchOptions.of(options, base_commit=_text(instance, "base_commit"))
        rule = rule_of(self._repo)
        parser = text_option(options, "log_parser", rule.parser)
        if parser not in PARSERS:
            raise EvaluatorError(f"evaluator.options.log_parser: must be one of {', '.join(PARSERS)}, not {parser!r}")
        self._parse = PARSERS[parser]
        default = command_of(rule, self._test_patch, [*self._fail_to_pass, *self._pass_to_pass])
        self._test_command = text_option(options, "test_command", default)
        self._setup = text_option(options, "setup", SETUP)
        self._test_timeout_s = seconds_option(options, "test_timeout_s", 1200.0)
        self._reward = text_option(options, "reward", "reward")

    async def evaluate(self, context: EvaluationContext) -> list[Grade]:
        """One grade, 1.0 when resolved, else 0.0, with the report's flags in its details.

        Raises:
            EvaluatorError: the tests could not be had: no repository, a test patch that doesn't apply, no test runner.
        """
        fresh = context.own_runtime
        head = await head_of(fresh, self._patch)
        patch = await patch_of(context, self._patch, head)
        if patch is not None:
            await context.artifacts.keep(PATCH, patch)
        if patch is None:
            return await self._graded(context, Report(patch_exists=True, patch_too_large=True, failed_apply_patch=True))
        if not patch.strip():
            return await self._graded(context, Report(empty_generation=True))
        applied = await apply_patch(fresh, self._patch, patch, PATCH)
        report = Report(patch_exists=True, applied_by=applied.by or "", said=applied.said)
        if applied.by is None:
            return await self._graded(context, replace(report, failed_apply_patch=True))
        report = replace(report, patch_successfully_applied=True, said="")
        try:
            await self._bring_tests(fresh, head)
            result = await self._run_tests(fresh)
            await context.artifacts.keep(TEST_LOG, result.stdout)
            report = replace(report, exit_code=result.exit_code, test_timeout=result.timed_out)
            report = self._judged(report, result)
        except EvaluatorError as error:
            await _keep(context, replace(report, error_eval=True, said=str(error)))
            raise
        return await self._graded(context, report)

    async def _bring_tests(self, fresh: Runtime, head: str) -> None:
        """The benchmark's versions of the test files, whatever the agent made of them."""
        if not self._test_patch.strip():
            return
        sides = [paths_of(section) for section in sections(self._test_patch)]
        old = sorted({before for before, _ in sides if before is not None})
        added = sorted({after for _, after in sides if after is not None} - set(old))
        commands = [f"cd {shlex.quote(directory(fresh, self._patch.repo_dir))}"]
        if added:
            commands.append("rm -rf -- " + " ".join(map(shlex.quote, added)))
        if old:
            commands.append(f"git -c safe.directory='*' checkout -q {head} -- " + " ".join(map(shlex.quote, old)))
        result = await shell(fresh, " && ".join(commands), timeout_s=self._patch.apply_timeout_s)
        if not result.succeeded:
            raise EvaluatorError(f"the test files could not be reset: {result.tail()}")
        applied = await apply_patch(fresh, self._patch, self._test_patch, "test.diff")
        if applied.by is None:
            raise EvaluatorError(f"the test patch doesn't apply: {applied.said}")

    async def _run_tests(self, fresh: Runtime) -> ExecResult:
        place = directory(fresh, self._patch.repo_dir)
        # One stream, so that what runners print on two of them stays in order.
        script = (
            f"exec 2>&1\ncd {shlex.quote(place)} || exit 97\n{self._setup}\necho '{_BEGIN}'\n{self._test_command}\n"
            f"code=$?\necho\necho '{_END}'\nexit $code\n"
        )
        file = posixpath.join(fresh.home, ".polynya", "test.sh")
        run = f"if command -v bash >/dev/null; then exec bash {shlex.quote(file)}; else exec sh {shlex.quote(file)}; fi"
        try:
            await fresh.upload(file, script.encode())
            return await fresh.exec(["/bin/sh", "-c", run], timeout_s=self._test_timeout_s, keep_bytes=16 * 1024 * 1024)
        except RuntimeFault as error:
            raise EvaluatorError(f"the tests could not be run: {error}") from error

    def _judged(self, report: Report, result: ExecResult) -> Report:
        """The report with the tests' verdicts. Raises EvaluatorError when no test can have been run at all."""
        log = result.stdout.decode("utf-8", "replace")
        statuses = self._parse(between(log))
        if not statuses and not result.timed_out and result.exit_code in {97, 126, 127}:
            raise EvaluatorError(f"the test command could not be run (exit code {result.exit_code}): {result.tail()}")
        fail_to_pass, pass_to_pass = tally(self._fail_to_pass, statuses), tally(self._pass_to_pass, statuses)
        resolved = not result.timed_out and not fail_to_pass.failure and not pass_to_pass.failure
        said = "" if resolved else result.tail()
        return replace(report, resolved=resolved, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass, said=said)

    async def _graded(self, context: EvaluationContext, report: Report) -> list[Grade]:
        if not report.patch_successfully_applied:
            report = replace(
                report, fail_to_pass=Tally(failure=self._fail_to_pass), pass_to_pass=Tally(failure=self._pass_to_pass)
            )
        await _keep(context, report)
        value = 1.0 if report.resolved else 0.0
        return [Grade(name=self._reward, value=value, details=report.as_details(brief=True))]


async def _keep(context: EvaluationContext, report: Report) -> None:
    await context.artifacts.keep(REPORT, orjson.dumps(report.as_details(brief=False), option=orjson.OPT_INDENT_2))


def between(log: str) -> str:
    """What the tests printed. Up to the last of the end's marks: a program under test may print one before its verdict."""
    said = log.partition(_BEGIN)[2]
    whole, mark, _ = said.rpartition(_END)
    return whole if mark else said


def tally(tests: Sequence[str], statuses: Statuses) -> Tally:
    """Which tests pass; one that the log doesn't name, or that was skipped, doesn't."""
    success = [test for test in tests if statuses.get(test) in PASSING]
    passed = set(success)
    return Tally(success=success, failure=[test for test in tests if test not in passed])


def _text(instance: Mapping[str, object], name: str) -> str:
    value = instance.get(name) or ""
    if not isinstance(value, str):
        raise EvaluatorError(f"evaluator.options.instance.{name}: must be a text")
    return value


def _tests(instance: Mapping[str, object], name: str) -> list[str]:
    """Names of tests: a list, or (as some data sets have it) a list written as JSON."""
    value = instance.get(name) or []
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise EvaluatorError(f"evaluator.options.instance.{name}: is no JSON list: {error}") from error
    if not isinstance(value, list) or not all(isinstance(test, str) for test in value):
        raise EvaluatorError(f"evaluator.options.instance.{name}: must be a list of tests' names")
    return list(value)
