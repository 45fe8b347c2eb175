"""Task files: read YAML or JSON, validate all of it before anything is submitted, and turn it into requests."""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from compose.cli.errors import first_problem, hint_for, nearest
from compose.errors import usage
from schemas.records import TaskRequest
from schemas.task import EvaluatorSpec, RuntimeSpec, TaskSpec


def read_tasks(source: str) -> list[TaskSpec]:
    """The validated tasks of a file ('-': standard input), which holds one task or more.

    As a list, as several YAML documents, or as JSON lines. Raises a usage error that names file, task and field; nothing is half-read.
    """
    name = "standard input" if source == "-" else source
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise usage(f"can't read the task file {name}: {exc}", hint="polynya submit FILE.yaml") from exc
    try:
        documents = _documents(text)
    except yaml.YAMLError as exc:
        raise usage(f"{name} is neither YAML nor JSON: {_yaml_problem(exc)}", hint="correct it there") from exc
    entries: list[Any] = [e for d in documents for e in (d if isinstance(d, list) else [d])]
    if not entries:
        raise usage(f"{name} holds no task", hint="a task needs at least 'instruction' and 'harness'")
    return [_validate(entry, name, i if len(entries) > 1 else None) for i, entry in enumerate(entries)]


def _documents(text: str) -> list[Any]:
    """The documents of a YAML text; JSON is read as JSON, whose escapes beyond the basic plane mean something else in YAML."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return [json.loads(text)]
        except json.JSONDecodeError:
            pass  # several of them, one a line, or YAML's flow style, which looks the same from outside
        try:
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        except json.JSONDecodeError:
            pass
    return [d for d in yaml.safe_load_all(text) if d is not None]


def _yaml_problem(error: yaml.YAMLError) -> str:
    """What is wrong and in which line, without YAML's drawing of it."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).split("\n", 1)[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


def _validate(entry: Any, source: str, position: int | None) -> TaskSpec:
    where = source if position is None else f"{source}, task {position + 1}"
    try:
        spec = TaskSpec.model_validate(entry)
    except ValidationError as exc:
        raise usage(f"{where}: {first_problem(exc)}", hint=hint_for(exc, TaskSpec)) from exc
    check_spec(spec, f"{where}: ")
    return spec


RUNTIME_HINT = "runtime: {kind: docker, image: NAME}, or runtime: {kind: local}"


def check_spec(spec: TaskSpec, where: str = "", *, runtime_hint: str = RUNTIME_HINT) -> None:
    """Raise a usage error, which starts with `where`, when no worker could run or grade a task: what its fields alone don't tell."""
    from harnesses import HarnessError, UnknownHarnessError, validate

    try:
        validate(spec.harness.name, spec.harness.options, spec.harness.version)
    except UnknownHarnessError as exc:
        raise usage(f"{where}{exc}", hint="polynya harness list") from exc
    except HarnessError as exc:
        raise usage(f"{where}{exc}", hint="polynya harness show " + spec.harness.name) from exc
    _check_runtime(spec.runtime, where, runtime_hint)
    check_evaluator(spec.evaluator, where)
    if spec.evaluator.runtime is not None:
        _check_runtime(spec.evaluator.runtime, f"{where}evaluator.", runtime_hint)


def _check_runtime(spec: RuntimeSpec, where: str, hint: str) -> None:
    if spec.kind == "local":  # sandboxes' modules take a moment to import, and few tasks need them
        return
    from stage_workers.runtimes import RuntimeFault
    from stage_workers.runtimes.factory import check

    try:
        check(spec)
    except RuntimeFault as exc:
        raise usage(f"{where}{exc}", hint="docs/runtimes.md lists the options" if spec.image else hint) from exc


def check_evaluator(spec: EvaluatorSpec, where: str = "") -> None:
    """Raise a usage error, which starts with `where`, when there is no such evaluator or its options are wrong."""
    from stage_workers import evaluators
    from stage_workers.evaluators.base import EvaluatorError

    check_evaluator_name(spec.name, where)
    try:
        evaluators.check(spec)
    except EvaluatorError as exc:
        known = evaluators.options_of(spec.name)
        if known is None or not str(exc).startswith("evaluator.options"):
            raise usage(f"{where}{exc}", hint="docs/evaluators.md says what each evaluator takes") from exc
        unknown = next((option for option in spec.options if option not in known), "")
        raise usage(f"{where}{exc}", hint=nearest(unknown, known, f"the options of {spec.name} are")) from exc


def check_evaluator_name(name: str, where: str = "") -> None:
    """Raise a usage error, which starts with `where`, when there is no such evaluator."""
    from stage_workers import evaluators
    from stage_workers.evaluators.base import EvaluatorError

    try:
        evaluators.place_of(name)
    except EvaluatorError as exc:
        known = evaluators.names()
        raise usage(f"{where}{exc}", hint=nearest(name, known, "the evaluators are")) from exc


def request_of(spec: TaskSpec) -> TaskRequest:
    """The command that asks the orchestrator to run a task; an absent task_id is made up here."""
    task_id = spec.task_id or f"task-{uuid.uuid4().hex[:16]}"
    return TaskRequest(
        task_id=task_id,
        policy_id=spec.policy_id,
        harness=spec.harness.name,
        instruction=spec.instruction,
        num_samples=spec.num_samples,
        priority=spec.priority,
        submitted_at=int(time.time() * 1000),
        spec=spec.model_copy(update={"task_id": task_id}).model_dump(mode="json"),
    )
