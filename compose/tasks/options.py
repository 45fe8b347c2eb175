"""What an import adds to each row: the harness, the runtime, budgets, how many samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """The same for all rows of one import; None and '' leave a format's own choice."""

    harness: str = "pi"
    harness_options: dict[str, Any] = field(default_factory=dict)
    runtime: Literal["local", "docker", "apptainer"] = "docker"
    image: str = ""
    samples: int = 1
    policy_id: str = ""
    repo_dir: str = ""
    test_command: str = ""
    instruction: str = ""
    prepare: tuple[str, ...] = ()
    """Shell commands in the session's runtime before the run, with the row's fields as the format fills them in."""
    run_s: float | None = None
    evaluate_s: float | None = None


def task_of(
    options: ImportOptions,
    *,
    task_id: str,
    instruction: str,
    image: str,
    evaluator: dict[str, Any],
    metadata: dict[str, Any],
    budgets: dict[str, float] | None = None,
    limits: dict[str, Any] | None = None,
    workdir: str = "",
    prepare: Sequence[str] = (),
) -> dict[str, Any]:
    """A task file's tree with only what isn't a default, so that the file stays readable.

    `workdir` is where programs of a container run; `local` has a directory of its own.
    """
    runtime: dict[str, Any] = {"kind": options.runtime, **(limits or {})}
    if options.runtime != "local":
        runtime["image"] = options.image or image
        if workdir:
            runtime["options"] = {"workdir": workdir}
    asked = {"run_s": options.run_s, "evaluate_s": options.evaluate_s}
    spent = {**(budgets or {}), **{name: value for name, value in asked.items() if value is not None}}
    harness: dict[str, Any] = {"name": options.harness}
    if options.harness_options:
        harness["options"] = options.harness_options
    return {
        "task_id": task_id,
        "instruction": instruction,
        "harness": harness,
        "runtime": runtime,
        **({"prepare": [{"exec": command} for command in prepare]} if prepare else {}),
        "evaluator": evaluator,
        **({"num_samples": options.samples} if options.samples != 1 else {}),
        **({"policy_id": options.policy_id} if options.policy_id else {}),
        **({"budgets": spent} if spent else {}),
        "metadata": metadata,
    }
