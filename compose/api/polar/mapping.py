"""Polar's TaskRequest as a task of ours. What has no counterpart is refused by its name, never dropped in silence."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from compose.api.polar.models import PolarAgent, PolarEvaluator, PolarRuntime, PolarTaskRequest, PrepareAction
from compose.api.problems import ApiError, FieldProblem, field_problems
from compose.api.submit import SubmittedTask

DEFAULT_BUDGET_S: Final = 300.0
"""Of each stage beside the run; Polar's one deadline over all of them only ever lengthens it."""

EVALUATORS: Final = {"swebench_harness": "swebench"}
"""Where a strategy has another name here."""

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "swebench": {"apply_timeout": "apply_timeout_s", "test_timeout": "test_timeout_s"},
    "test_on_output": {
        "apply_timeout": "apply_timeout_s",
        "test_timeout": "test_timeout_s",
        "test_command": "command",
        "expected_output_json": "expected",
    },
    "harbor": {"test_timeout": "timeout_s"},
}
"""Where an option of an evaluator has another name here."""


class _Refused(Exception):  # noqa: N818 - a note on its way to the one answer
    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path = path


def task_of(request: PolarTaskRequest) -> SubmittedTask:
    """Our task. Raises ApiError (422) that names every field in Polar's own words."""
    try:
        fields = _fields(request)
    except _Refused as refused:
        errors = [FieldProblem(path=refused.path, problem=str(refused))]
        raise ApiError(
            422, f"{refused.path}: {refused}", hint="docs/polar-compatibility.md lists what is taken", errors=errors
        ) from refused
    try:
        return SubmittedTask.model_validate(fields)
    except ValidationError as error:
        problems = field_problems(error.errors())
        raise ApiError(422, f"{problems[0].path}: {problems[0].problem}", errors=problems) from error


def _fields(request: PolarTaskRequest) -> dict[str, Any]:
    run_s = _agent_timeout(request.metadata) or request.timeout_seconds
    other_s = max(DEFAULT_BUDGET_S, request.timeout_seconds)
    runtime, prepare, eval_prepare = _runtime(request.runtime)
    return {
        "task_id": request.task_id,
        "instruction": request.instruction,
        "harness": _harness(request.agent),
        "runtime": runtime,
        "prepare": prepare,
        "eval_prepare": eval_prepare,
        "evaluator": _evaluator(request.evaluator),
        "num_samples": request.num_samples,
        "min_usable": request.early_stop_min_usable_sessions,
        "builder": {"name": request.builder.strategy, "options": request.builder.config},
        "budgets": {"init_s": other_s, "run_s": run_s, "postrun_s": other_s, "evaluate_s": other_s},
        "priority": request.dispatch_priority,
        "metadata": request.metadata,
        "callback_url": request.callback_url,
        "callback_body": "polar",
    }


def _agent_timeout(metadata: Mapping[str, Any]) -> float | None:
    value = metadata.get("agent_timeout")
    if value is None:
        return None
    # JSON's whole numbers may be larger than any float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise _Refused("metadata.agent_timeout", "must be a positive number of seconds")
    return float(value)


def _refuse(where: str, fields: Mapping[str, object], why: str) -> None:
    for name, value in fields.items():
        if value:
            raise _Refused(f"{where}.{name}", why)


def _harness(agent: PolarAgent) -> dict[str, Any]:
    _refuse("agent", {"import_path": agent.import_path}, "harnesses are named here: see `polynya harness list`")
    _refuse("agent", {"env": agent.env}, "an agent's environment comes from its harness; use its options (settings)")
    _refuse(
        "agent", {"skills_path": agent.skills_path}, "a path of a server: give skills as settings.skills, by content"
    )
    if not agent.harness:
        raise _Refused("agent.harness", "this field is needed")
    options = dict(agent.settings)
    if agent.custom_shell is not None:
        if agent.harness != "shell":
            raise _Refused("agent.custom_shell", "belongs to the harness `shell` alone")
        options["command"] = agent.custom_shell
    if agent.mcp_servers:
        options["mcp_servers"] = {
            server.name: {"url": server.url} if server.url else {"command": server.command or "", "args": server.args}
            for server in agent.mcp_servers
        }
    return {"name": agent.harness, "options": options}


def _runtime(runtime: PolarRuntime | None) -> tuple[dict[str, Any], list[Any], list[Any]]:
    if runtime is None:
        return {}, [], []
    none = "there is no such thing here"
    _refuse("runtime", {"storage_mb": runtime.storage_mb, "gpus": runtime.gpus, "kwargs": runtime.kwargs}, none)
    _refuse("runtime", {"import_path": runtime.import_path}, "runtimes are docker and apptainer here")
    _refuse("runtime", {"env": runtime.env}, "set it in the image, or in the steps that need it (prepare[].env)")
    _refuse("runtime", {"workdir": runtime.workdir}, "a session has a working directory of its own; use `cwd` in steps")
    has_network = runtime.allow_internet is True or (runtime.network or "none") not in ("none", "model_only")
    ours = {
        "kind": runtime.backend,
        "image": runtime.image,
        "cpus": runtime.cpus,
        "memory_mb": runtime.memory_mb,
        "network": "egress" if has_network and runtime.allow_internet is not False else "model_only",
    }
    prepare = [_step(step, f"runtime.prepare[{n}]") for n, step in enumerate(runtime.prepare)]
    fresh = [_step(step, f"runtime.eval_prepare[{n}]") for n, step in enumerate(runtime.eval_prepare or [])]
    return ours, prepare, fresh


def _step(step: PrepareAction, where: str) -> dict[str, Any]:
    if step.type != "exec":
        raise _Refused(f"{where}.type", f"{step.type} reads a server's disk: send the content in our own form instead")
    if not step.command:
        raise _Refused(f"{where}.command", "this field is needed")
    _refuse(where, {"source": step.source, "target": step.target}, "belongs to an upload")
    command = step.command
    if step.env:
        sets = " ".join(f"{name}={shlex.quote(value)}" for name, value in step.env.items())
        command = f"export {sets}; {command}"
    if step.cwd:
        command = f"cd {shlex.quote(step.cwd)} && {{ {command}\n}}"
    return {"exec": command, "budget_s": DEFAULT_BUDGET_S}


def _evaluator(evaluator: PolarEvaluator | None) -> dict[str, Any]:
    if evaluator is None:
        return {}
    name = EVALUATORS.get(evaluator.strategy, evaluator.strategy)
    if ":" in name:
        raise _Refused("evaluator.strategy", "must be the name of an evaluator")
    renamed = OPTIONS.get(name, {})
    options = {renamed.get(option, option): value for option, value in evaluator.config.items()}
    if evaluator.env:
        if name != "harbor":
            raise _Refused("evaluator.env", "only the evaluator `harbor` takes an environment")
        options["env"] = evaluator.env
    # False is Polar's default and says nothing: the evaluator decides, as here.
    return {"name": name, "options": options, "fresh": True if evaluator.refresh_runtime else None}
