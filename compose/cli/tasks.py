"""`polynya tasks`: task files made of other people's data sets."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from compose.cli.console import out, print_json
from compose.errors import usage

app = typer.Typer(help="Task files: import data sets and task folders.", no_args_is_help=True)

RuntimeKind = Literal["local", "docker", "apptainer"]


@app.callback()
def _group() -> None:
    """Task files: import data sets and task folders."""


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="rows (.jsonl, .json, .parquet), or a task folder")],
    *,
    format_: Annotated[str, typer.Option("--format", help="swebench, swegym, skyrl, harbor or jsonl")],
    to_: Annotated[
        Path | None, typer.Option("--out", help="the task file to write (default: FILE.tasks.jsonl)")
    ] = None,
    harness: Annotated[str, typer.Option(help="the agent that is to solve them")] = "pi",
    harness_options: Annotated[str, typer.Option(help="options of its adapter, as JSON")] = "{}",
    runtime: Annotated[str, typer.Option(help="docker, apptainer or local")] = "docker",
    image: Annotated[str, typer.Option(help="one image for all, instead of each row's own")] = "",
    samples: Annotated[int, typer.Option(min=1, help="sessions for each task")] = 1,
    policy: Annotated[str, typer.Option(help="the policy that is to solve them")] = "",
    repo_dir: Annotated[str, typer.Option(help="where the repository is (default: /testbed)")] = "",
    test_command: Annotated[str, typer.Option(help="instead of each repository's own")] = "",
    instruction_file: Annotated[
        Path | None, typer.Option(help="a wording with {repo}, {repo_dir} and {problem_statement}")
    ] = None,
    prepare: Annotated[
        list[str] | None,
        typer.Option(help="a shell command before each run; of SWE rows with {repo}, {base_commit}, {instance_id}"),
    ] = None,
    run_s: Annotated[float | None, typer.Option(help="the budget of a run")] = None,
    evaluate_s: Annotated[float | None, typer.Option(help="the budget of a grading")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="only the first so many")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Turn a data set into a task file that `polynya submit` accepts. Nothing is written unless every task is valid."""
    from compose.tasks import ImportOptions, import_tasks

    if runtime not in get_args(RuntimeKind):
        raise usage(f"--runtime {runtime!r}: must be one of {', '.join(get_args(RuntimeKind))}")
    try:
        adapter_options = json.loads(harness_options)
    except json.JSONDecodeError as exc:
        raise usage(f"--harness-options is no JSON: {exc}") from exc
    if not isinstance(adapter_options, dict):
        raise usage("--harness-options must be a JSON object")
    options = ImportOptions(
        harness=harness,
        harness_options=adapter_options,
        runtime=runtime,  # type: ignore[arg-type]  # one of them, as checked above
        image=image,
        samples=samples,
        policy_id=policy,
        repo_dir=repo_dir,
        test_command=test_command,
        instruction=instruction_file.read_text(encoding="utf-8") if instruction_file else "",
        prepare=tuple(prepare or ()),
        run_s=run_s,
        evaluate_s=evaluate_s,
    )
    tasks = list(itertools.islice(import_tasks(source, format_, options), limit))
    path = to_ or source.with_name(f"{source.name}.tasks.jsonl")
    lines = (json.dumps(task.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False) for task in tasks)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if as_json:
        print_json({"file": str(path), "tasks": len(tasks)})
        return
    out.print(f"{path}: {len(tasks)} tasks", markup=False)
    out.print(f"submit them with: polynya submit {path}", markup=False)
