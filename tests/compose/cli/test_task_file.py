"""Task files: every mistake is named with file, field and hint, and nothing is half-read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compose.cli.task_file import check_evaluator, read_tasks, request_of
from compose.errors import CommandError, ExitCode
from schemas.task import EvaluatorSpec

GOOD = "instruction: do it\nharness: {name: shell, options: {command: 'true'}}\n"


def problem(tmp_path: Path, text: str) -> CommandError:
    """The usage error that a task file's text gives."""
    path = tmp_path / "task.yaml"
    path.write_text(text)
    with pytest.raises(CommandError) as caught:
        read_tasks(str(path))
    assert caught.value.code is ExitCode.USAGE
    return caught.value


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        (GOOD + "num_sample: 4\n", "num_sample", "num_samples"),
        (GOOD + "budgets: {run: 5}\n", "budgets.run", "run_s"),
        (GOOD + "budgets: {run_s: -5}\n", "budgets.run_s", "correct"),
        (GOOD + "num_samples: many\n", "num_samples", "correct"),
        (GOOD + "prepare: [{exec: 'true', budget_s: 0}]\n", "prepare[0].budget_s", "correct"),
        (GOOD + "prepare: [{upload: {path: ../x}}]\n", "prepare[0].upload", "correct"),
        ("harness: {name: shell, options: {command: 'true'}}\n", "instruction", "add the field"),
        ("instruction: x\nharness: {name: shell}\n", "command", "harness show shell"),
        (GOOD + "evaluator: {name: comand}\n", "evaluator", "command"),
        (GOOD + "evaluator: {name: nothing like one}\n", "evaluator.name", "the evaluators are: command"),
        (
            GOOD + "evaluator: {name: command}\n",
            "options.command",
            "the options of command are: command, score, reward",
        ),
        (GOOD + "evaluator: {name: command, options: {comand: x}}\n", "options.comand", "did you mean 'command'?"),
        (GOOD + "evaluator: {name: command, options: {x: 1}}\n", "options.x", "the options of command are: command"),
        (GOOD + "evaluator: {name: swebench, fresh: false}\n", "evaluator.options.instance", "the options of swebench"),
        (GOOD + "evaluator: {name: 'json:loads'}\n", "evaluator.name", "the evaluators are"),
        (GOOD + "runtime: {kind: docker}\n", "runtime.image: runtime `docker` needs an image", "image: NAME"),
        (GOOD + "runtime: {kind: apptainer}\n", "runtime.image: runtime `apptainer` needs", "kind: local"),
        (GOOD + "runtime: {kind: docker, image: x, options: {colour: red}}\n", "runtime.options.colour", "runtimes.md"),
        (GOOD + "evaluator: {runtime: {kind: docker}}\n", ": evaluator.runtime.image: ", "image: NAME"),
        ("instruction: x\nharness: {name: shel}\n", "harness", "harness list"),
        ("instruction: x\nharnes: {name: pi}\n", "harnes", "did you mean 'harness'?"),
    ],
)
def test_a_mistake_is_named_with_its_path_and_a_hint(tmp_path: Path, text: str, path: str, hint: str) -> None:
    """Unknown fields, wrong types, negative budgets and missing commands are told apart."""
    error = problem(tmp_path, text)
    assert path in str(error)
    assert hint in error.hint


def test_text_that_is_no_yaml_is_a_usage_error(tmp_path: Path) -> None:
    """Broken YAML names the file, the line and what is wrong, without YAML's drawing of it."""
    said = str(problem(tmp_path, "a: [1, 2"))
    assert "task.yaml" in said
    assert "line 1, column 9: expected" in said
    assert "^" not in said


def test_an_empty_file_is_a_usage_error(tmp_path: Path) -> None:
    """A file without a task says what a task needs."""
    assert "instruction" in problem(tmp_path, "# nothing\n").hint


def test_one_bad_task_of_many_refuses_all(tmp_path: Path) -> None:
    """The error names the task's position; the good one isn't returned."""
    assert "task 2" in str(problem(tmp_path, GOOD + "---\n" + GOOD + "oops: 1\n"))


def test_several_documents_are_several_tasks(tmp_path: Path) -> None:
    """YAML documents and lists both hold tasks."""
    path = tmp_path / "tasks.yaml"
    path.write_text(GOOD + "---\n- " + GOOD.replace("\n", "\n  ").rstrip() + "\n")
    assert len(read_tasks(str(path))) == 2


def test_json_is_read_as_json(tmp_path: Path) -> None:
    """A JSON file's escapes mean what they mean in JSON: two halves of one character are one."""
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"instruction": "Write 🧊.", "harness": {"name": "pi"}}]))
    assert read_tasks(str(path))[0].instruction == "Write 🧊."
    path.write_text("{instruction: flow style, harness: {name: pi}}")
    assert read_tasks(str(path))[0].instruction == "flow style"


def test_a_request_carries_the_whole_spec_and_its_id(tmp_path: Path) -> None:
    """An absent task id is made up once and stands in the spec too."""
    path = tmp_path / "task.yaml"
    path.write_text(GOOD + "num_samples: 3\n")
    request = request_of(read_tasks(str(path))[0])
    assert request.task_id.startswith("task-")
    assert request.spec["task_id"] == request.task_id
    assert (request.num_samples, request.harness) == (3, "shell")


def test_the_example_is_a_valid_task_file() -> None:
    """What the README points at can be submitted as it is."""
    (spec,) = read_tasks(str(Path(__file__).parents[3] / "examples" / "shell_task.yaml"))
    assert spec.harness.name == "shell"


def test_a_mistaken_evaluator_is_a_usage_error() -> None:
    """`session close` asks before it seals: a session is closed once, and a typo mustn't cost its grade."""
    with pytest.raises(CommandError, match="no evaluator `comand`") as caught:
        check_evaluator(EvaluatorSpec(name="comand"))
    assert caught.value.code is ExitCode.USAGE


def test_messages_speak_of_the_file(tmp_path: Path) -> None:
    """No message speaks of pydantic's inputs and instances."""
    assert "num_sample: there is no such field" in str(problem(tmp_path, GOOD + "num_sample: 4\n"))
    assert "instruction: this field is needed" in str(problem(tmp_path, "harness: {name: shell}\n"))
    assert "harness: must be a mapping of fields" in str(problem(tmp_path, "instruction: x\nharness: shell\n"))


def test_json_lines(tmp_path: Path) -> None:
    """One task a line, as importers write them; separators that aren't newlines stay in the text."""
    lines = [
        {"instruction": f"task {i}\u2028end", "harness": {"name": "shell", "options": {"command": "true"}}}
        for i in range(3)
    ]
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n", encoding="utf-8")
    assert [task.instruction for task in read_tasks(str(path))] == [line["instruction"] for line in lines]


def test_an_evaluator_that_needs_a_fresh_runtime(tmp_path: Path) -> None:
    """Where it grades is checked before anything is submitted."""
    path = tmp_path / "t.json"
    harness = {"name": "shell", "options": {"command": "true"}}
    evaluator = {"name": "harbor", "fresh": True, "options": {"tests": {"test.sh": "true"}}}
    path.write_text(json.dumps({"instruction": "x", "harness": harness, "evaluator": evaluator}))
    with pytest.raises(CommandError, match=r"evaluator\.fresh: `harbor` looks at the runtime"):
        read_tasks(str(path))
