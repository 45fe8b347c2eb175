"""The formats that can be imported, by name, and the check of what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from compose.cli.errors import first_problem
from compose.cli.task_file import check_spec
from compose.errors import usage
from compose.tasks.harbor import harbor_tasks
from compose.tasks.options import ImportOptions, task_of
from compose.tasks.rows import Row, read_rows
from compose.tasks.swe import FAMILIES, swe_task
from schemas.task import TaskSpec

Importer = Callable[[Path, ImportOptions], Iterator[dict[str, Any]]]

_INSTRUCTION_FIELDS = ("instruction", "prompt", "question", "problem_statement")


def _rows(
    make: Callable[[Row, ImportOptions, str], dict[str, Any]], path: Path, options: ImportOptions
) -> Iterator[Any]:
    for number, row in enumerate(read_rows(path), 1):
        yield make(row, options, f"{path}, row {number}")


def _plain_task(row: Row, options: ImportOptions, where: str) -> dict[str, Any]:
    """A row of task fields: those that it has win over the import's options; what is no field of a task becomes metadata."""
    name = next(
        (field for field in _INSTRUCTION_FIELDS if isinstance(row.get(field), str) and row[field].strip()), None
    )
    if name is None:
        raise usage(f"{where}: the row has no instruction: none of {', '.join(_INSTRUCTION_FIELDS)}")
    own = {field: value for field, value in row.items() if field in TaskSpec.model_fields}
    rest = {field: value for field, value in row.items() if field not in own and field != name}
    identity = row.get("task_id") or row.get("id") or row.get("instance_id") or where.replace(", row ", "-")
    made = task_of(
        options,
        task_id=str(identity),
        instruction=str(row[name]),
        image=options.image,
        evaluator={"name": "session_completed"},
        metadata={},
        prepare=options.prepare,
    )
    return {**made, **own, "metadata": {**rest, **(own.get("metadata") or {})}}


FORMATS: dict[str, Importer] = {
    **{name: partial(_rows, partial(swe_task, family=family)) for name, family in FAMILIES.items()},
    "harbor": harbor_tasks,
    "jsonl": partial(_rows, _plain_task),
}


def import_tasks(path: Path, name: str, options: ImportOptions) -> Iterator[TaskSpec]:
    """The tasks of a file or folder, each checked as `submit` would check it. CommandError for what can't be imported."""
    if name not in FORMATS:
        raise usage(f"there is no format {name!r}", hint=f"--format {'|'.join(FORMATS)}")
    seen: set[str] = set()
    for number, tree in enumerate(FORMATS[name](path, options), 1):
        where = f"{path}, task {number} ({tree.get('task_id')})"
        try:
            spec = TaskSpec.model_validate(tree)
        except ValidationError as exc:
            raise usage(f"{where}: {first_problem(exc)}") from exc
        check_spec(spec, f"{where}: ", runtime_hint="--image NAME, or --runtime local")
        if spec.task_id in seen:
            raise usage(f"{where}: its id stands for an earlier task already")
        seen.add(str(spec.task_id))
        yield spec
