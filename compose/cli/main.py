"""The console command `polynya`: wires the groups of commands together and turns errors into exit codes."""

from __future__ import annotations

import logging
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Annotated

import structlog
import typer
from pydantic import ValidationError

from compose.cli import (
    ablation,
    api,
    blobs,
    ca,
    control,
    demo,
    engine,
    evaluate,
    export,
    harness,
    policy,
    replay,
    running,
    session,
    status,
    submit,
    tasks,
    topics,
    train,
    verify,
)
from compose.cli import (
    eval as eval_,
)
from compose.cli.console import die, err, flush, out
from compose.cli.errors import first_problem
from compose.errors import CommandError, ExitCode, dependency_down, usage

app = typer.Typer(
    name="polynya",
    help="Reinforcement learning on any agent harness, as an event stream.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

running.register(app)
submit.register(app)
status.register(app)
control.register(app)
demo.register(app)
ablation.register(app)
verify.register(app)
replay.register(app)
evaluate.register(app)
app.add_typer(session.app, name="session")
app.add_typer(topics.app, name="topics")
app.add_typer(tasks.app, name="tasks")
app.add_typer(blobs.app, name="blobs")
app.add_typer(eval_.app, name="eval")
app.add_typer(export.app, name="export")
app.add_typer(train.app, name="train")
app.add_typer(engine.app, name="engine")
app.add_typer(policy.app, name="policy")
app.add_typer(harness.app, name="harness")
app.add_typer(ca.app, name="ca")
app.add_typer(api.app, name="api")


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"polynya {metadata.version('polynya')}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Reinforcement learning on any agent harness, as an event stream."""
    del version  # its callback has done the work


def configure_logging() -> None:
    """Logs go to stderr: pretty on a terminal, JSON lines elsewhere."""
    is_terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if is_terminal else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # aiokafka says a great deal about brokers that come and go; the bus reports what matters.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    logging.getLogger("aiokafka.cluster").setLevel(logging.CRITICAL)  # a topic that isn't there is an error of ours


def main() -> None:
    """Run the command line; exit codes: 0 ok, 1 failed, 2 usage, 3 a dependency is down."""
    configure_logging()
    # A person's evaluators and policies are looked up from where one stands, after everything that is installed.
    sys.path.append(str(Path.cwd()))
    try:
        app()
    except CommandError as error:
        die(error)
    except ValidationError as error:
        die(usage(first_problem(error), hint="polynya --help, or look at polynya.toml and the POLYNYA_* environment"))
    except tomllib.TOMLDecodeError as error:
        die(usage(f"polynya.toml isn't valid TOML: {error}", hint="correct polynya.toml"))
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(int(ExitCode.FAILED))
    except Exception as error:  # the outermost boundary: known outages get their own exit code
        known = _outage(error)
        if known is None:
            raise
        die(known)
    finally:
        flush()


def _outage(error: BaseException) -> CommandError | None:
    """The command error for a part or a topic that isn't there, or None when the error is a bug of ours."""
    from aiokafka.errors import KafkaError

    from bus import TopicMissingError
    from compose.kafka import KafkaUnavailable

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KafkaUnavailable):
            return dependency_down(str(seen))
        if isinstance(seen, TopicMissingError):
            return dependency_down(str(seen), hint="polynya topics diff")
        if isinstance(seen, KafkaError | ConnectionError):
            return dependency_down(
                f"Kafka doesn't answer: {seen!r}", hint="polynya up --detach, or set POLYNYA_BOOTSTRAP to your cluster"
            )
        seen = seen.__cause__
    return None


if __name__ == "__main__":
    main()
