"""`polynya train`: the reference trainer. Its options are the fields of its settings."""

from __future__ import annotations

import asyncio
import inspect
import signal
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Union

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from compose.cli.connect import open_bus
from compose.cli.console import async_command, err, out, print_json
from compose.cli.errors import first_problem
from compose.cli.options import shown_as
from compose.errors import CommandError, dependency_down, usage
from compose.settings import load
from trainer_sink import CheckpointMismatchError, RecordsExpiredError
from trainer_sink.policies import EnginesUnfitError, PolicyError
from trainer_sink.reference import GrpoSettings, ModelLoadError, RunInUseError, StepReport, TrainerError, train_grpo

app = typer.Typer(help="Training: the reference GRPO trainer.", no_args_is_help=True)

PANELS: Final = {
    "start": "Groups",
    "max_steps": "When to stop",
    "advantage": "Credit",
    "epochs": "Loss",
    "lr": "Optimizer",
    "device": "Machine",
    "logprob_limit": "Check of the engine's logprobs",
    "push": "Weights to the engines",
    "tensorboard": "Metrics",
}
"""The first field of each part of `--help`, in the order of the settings."""


async def _grpo(*, as_json: bool, **fields: Any) -> None:
    """Train a policy with GRPO: groups from Kafka in, weights to its engines out. Started again, it goes on where it was.

    Each step is saved with its position on the log in --output-dir, pushed to the policy's engines as the next version, and
    published. docs/training.md explains the settings, the files and restarts.
    """
    try:
        settings = GrpoSettings(**{name: _given(value) for name, value in fields.items()})
    except ValidationError as error:
        raise usage(first_problem(error), hint="polynya train grpo --help") from error
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    def show(report: StepReport) -> None:
        (err if as_json else out).print(report.line(), markup=False, soft_wrap=True)

    again = "polynya train grpo with the same options goes on from the last checkpoint"
    try:
        async with open_bus(load()) as bus:
            report = await train_grpo(bus, settings, on_step=show, stop=stop)
    except EnginesUnfitError as error:
        raise dependency_down(str(error), hint="polynya engine list; to train without engines: --no-push") from error
    except (ModelLoadError, RunInUseError) as error:
        raise usage(str(error), hint="polynya train grpo --help") from error
    except (TrainerError, PolicyError, CheckpointMismatchError, RecordsExpiredError) as error:
        raise CommandError(str(error), hint=again) from error
    if as_json:
        print_json({**report.to_json(), "steps": len(report.steps)})
        return
    out.print(
        f"{report.reason}: {len(report.steps)} steps in {report.seconds:.0f} s, reward {report.baseline:.3f} → "
        f"{report.baseline + report.gain:.3f} (gain {report.gain:+.3f}), version {report.version}",
        markup=False,
    )
    for path in filter(None, (report.checkpoint, report.plot)):
        out.print(f"  {path}", markup=False, soft_wrap=True)


def _given(value: Any) -> Any:
    """Typer's list as the settings' tuple; an empty one is an option that wasn't given."""
    return (tuple(value) or None) if isinstance(value, list) else value


def _command(function: Callable[..., Any], model: type[GrpoSettings]) -> Callable[..., Any]:
    """The function with one option for each of the model's fields, told by the field's own words."""
    panel, parameters = "Run", []
    for name, field in model.model_fields.items():
        panel = PANELS.get(name, panel)
        option = typer.Option(help=field.description, rich_help_panel=panel)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.is_required() else _default(field),
                annotation=Annotated[_option_type(field.annotation), option],
            )
        )
    parameters.append(
        inspect.Parameter(
            "as_json",
            inspect.Parameter.KEYWORD_ONLY,
            default=False,
            annotation=Annotated[bool, typer.Option("--json", help="the report as JSON; steps go to stderr")],
        )
    )
    return shown_as(async_command(function), parameters)


def _default(field: FieldInfo) -> Any:
    return list(field.default) if isinstance(field.default, tuple) else field.default


def _option_type(annotation: Any) -> Any:
    """What Typer understands for a field's type: a repeatable option for a tuple, a text where there are several types."""
    origin = typing.get_origin(annotation)
    if origin is tuple:
        return list[str]
    if origin in (Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        is_optional = len(kinds) < len(typing.get_args(annotation))
        kind = _option_type(kinds[0]) if len(kinds) == 1 else str
        return Union[kind, None] if is_optional else kind  # noqa: UP007 - built at run time
    if origin is Literal and all(isinstance(value, int) for value in typing.get_args(annotation)):
        return int
    return annotation


app.command("grpo")(_command(_grpo, GrpoSettings))


@app.callback()
def training() -> None:
    """Training: the reference GRPO trainer."""
