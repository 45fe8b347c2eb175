"""`polynya train grpo` as a person types it, over a bus in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bus.memory import MemoryBus
from compose.cli import main, train
from compose.errors import CommandError, ExitCode
from trainer_sink.policies import SupersededError
from trainer_sink.reference import GrpoSettings, TrainReport

REPORT = TrainReport(
    steps=(),
    reason="gain",
    rewards=(0.2, 0.6),
    baseline=0.2,
    gain=0.4,
    version="7",
    checkpoint=Path("out/checkpoints/step-000002"),
    max_logprob_diff=1e-5,
    seconds=12.0,
)


class Trainer:
    """Stands in for a run: keeps what it was given, and gives or raises what it was told."""

    def __init__(self) -> None:
        self.settings: GrpoSettings | None = None
        self.error: Exception | None = None

    async def __call__(self, bus: Any, settings: GrpoSettings, **_: Any) -> TrainReport:
        self.settings = settings
        if self.error is not None:
            raise self.error
        return REPORT


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """In place of the real one, and of Kafka."""
    made = Trainer()

    @asynccontextmanager
    async def bus(_: Any) -> AsyncIterator[MemoryBus]:
        async with MemoryBus() as memory:
            yield memory

    monkeypatch.setattr(train, "train_grpo", made)
    monkeypatch.setattr(train, "open_bus", bus)
    return made


def grpo(*arguments: object) -> Any:
    """One call of the command."""
    given = ["train", "grpo", "--model", "m", "--output-dir", "out", *map(str, arguments)]
    return CliRunner(env={"COLUMNS": "200"}).invoke(main.app, given)


def test_every_setting_is_an_option_with_its_description() -> None:
    """Nothing can be set that `--help` doesn't tell."""
    done = CliRunner(env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"}).invoke(main.app, ["train", "grpo", "--help"])
    assert done.exit_code == 0
    told = " ".join(done.stdout.replace("│", " ").split())
    for name, field in GrpoSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in told
        assert field.description in told


def test_options_become_settings(trainer: Trainer) -> None:
    """Each kind of option: a number, a choice, a switch, several values, a point in time; what isn't given keeps its default."""
    chosen = ["--lr", 5e-4, "--anchor", "recomputed", "--no-push", "--engines", "http://a", "--engines", "http://b"]
    done = grpo(*chosen, "--start", 1700000000000, "--ddof", 1, "--task-ids", "t", "--trainer-id", "7")
    assert done.exit_code == 0, done.output
    assert trainer.settings == GrpoSettings(
        model=Path("m"),
        output_dir=Path("out"),
        lr=5e-4,
        anchor="recomputed",
        push=False,
        engines=("http://a", "http://b"),
        start=1_700_000_000_000,
        ddof=1,
        task_ids=("t",),
        trainer_id="7",
    )
    assert "gain: 0 steps in 12 s, reward 0.200 → 0.600 (gain +0.400), version 7" in done.stdout


def test_defaults_are_the_settings_own(trainer: Trainer) -> None:
    """The command adds none."""
    assert grpo("--json").exit_code == 0
    assert trainer.settings == GrpoSettings(model=Path("m"), output_dir=Path("out"))


def test_the_report_as_json(trainer: Trainer) -> None:
    """One document, for machines."""
    told = json.loads(grpo("--json").stdout)
    assert (told["gain"], told["version"], told["checkpoint"]) == (0.4, "7", "out/checkpoints/step-000002")


def test_settings_that_contradict_each_other_are_refused(trainer: Trainer) -> None:
    """A reference model without a KL term says what to set."""
    done = grpo("--reference-model", "r")
    assert isinstance(done.exception, CommandError)
    assert done.exception.code is ExitCode.USAGE
    assert "Set kl_coef" in str(done.exception)
    assert trainer.settings is None


def test_a_superseded_trainer_says_who_took_over(trainer: Trainer) -> None:
    """Its exit code is that of a failure."""
    trainer.error = SupersededError("trainer grpo may no longer push: trainer other claimed it", by="other", epoch=3)
    done = grpo()
    assert isinstance(done.exception, CommandError)
    assert (done.exception.code, "other claimed it" in str(done.exception)) == (ExitCode.FAILED, True)


async def test_a_signal_ends_the_run_after_its_step(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM sets the event that the run looks at, and the report is printed as ever."""
    import os
    import signal

    async def waits(bus: Any, settings: GrpoSettings, *, stop: asyncio.Event, **_: Any) -> TrainReport:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 10)
        return REPORT

    monkeypatch.setattr(train, "train_grpo", waits)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        await train._grpo(as_json=True, model=Path("m"), output_dir=Path("out"))
        assert json.loads(capsys.readouterr().out)["version"] == "7"
    finally:
        loop = asyncio.get_running_loop()
        for number, handler in handlers.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
