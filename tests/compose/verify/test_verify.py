"""The fidelity check: a whole session of the real tiny model verifies, and a token that was tampered with is named."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from bus.archive import archive
from bus.memory import MemoryBus
from compose.cli import main
from compose.cli.verify import _check_machine, _own_model
from compose.cpu_engine.model import Model, ModelError, Row
from compose.cpu_engine.sampling import SamplingRule
from compose.cpu_engine.tiny_model import ensure_tiny_model
from compose.errors import CommandError
from compose.runtime_info import StackInfo
from compose.verify import Report, verify
from compose.verify.gather import find, trajectories
from compose.verify.scorer import Scorer
from compose.verify.spans import spans_of
from schemas import ids
from schemas.arrays import pack_logprobs, unpack_logprobs
from schemas.records import CompletionRecord, SessionSpec, Trace, Trajectory, TurnSpan, VersionSpan
from stream_processors.assembler.core import assemble
from stream_processors.assembler.row import LeaseRow, SessionRow
from stream_processors.builders import Lease
from tests.stream_processors.helpers import call, delivery

SESSION = "session-verify"
LEASE = ids.lease_id(SESSION, 1)
TURNS = ((0.7, "temperature"), (1.3, "temperature"), (0.0, "temperature"))


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    """The demo model's directory: real Qwen3 tokenizer, random weights."""
    return ensure_tiny_model()


@pytest.fixture(scope="module")
def scorer(checkpoint: Path) -> Scorer:
    torch.set_num_threads(1)
    return Scorer(checkpoint)


@pytest.fixture(scope="module")
def session(checkpoint: Path) -> list[CompletionRecord]:
    """Three turns that the engine's own model sampled at three temperatures, the second with two weight versions' names."""
    model = Model(checkpoint)
    generator = torch.Generator().manual_seed(7)
    prompt = torch.randint(0, 150_000, (300,), generator=generator).tolist()
    records = []
    for n, (temperature, mode) in enumerate(TURNS, 1):
        output, logprobs = _sample(model, prompt, SamplingRule(temperature=temperature), generator)
        records.append(
            call(
                n,
                prompt,
                output,
                logprobs=logprobs,
                logprobs_mode=mode,
                lease=LEASE,
                session=SESSION,
                sampling_effective={"temperature": temperature, "top_p": 1.0},
                version_spans=[VersionSpan(version="1", start=0, end=len(output))],
            )
        )
        prompt = [*prompt, *output, 100 + n, 200 + n]
    return records


def _sample(
    model: Model, prompt: Sequence[int], rule: SamplingRule, generator: torch.Generator
) -> tuple[list[int], list[float]]:
    output: list[int] = []
    logprobs: list[float] = []
    storage, new = model.storage(), list(prompt)
    for _ in range(24):
        (result,) = model.step([Row(storage, new, rule, [], sample=True, generator=generator)])
        new = result.ids
        output += result.ids
        logprobs += result.logprobs
    return output, logprobs


def built(records: Sequence[CompletionRecord]) -> Trajectory:
    facts = [f for r in records for f in (r, delivery(r.call_seq, lease=LEASE, session=SESSION))]
    row = SessionRow(leases={LEASE: LeaseRow()}).with_spec(SessionSpec(task_id="t", policy_id="policy"))
    return assemble(row, SESSION, LEASE, Lease(facts), 0)


def check(records: Sequence[CompletionRecord], scorer: Scorer, **options: Any) -> Report:
    sampling = {r.completion_id: r.sampling_effective for r in records}
    return verify([built(records)], sampling, scorer, **{"version": "1", "tolerance": 1e-4, **options})


def tampered(records: Sequence[CompletionRecord], n: int, at: int, by: float) -> list[CompletionRecord]:
    """The records with one log-probability of call n (from 1) changed."""
    values = unpack_logprobs(records[n - 1].logprobs).copy()
    values[at] += by
    return [replace(r, logprobs=pack_logprobs(values)) if r.call_seq == n else r for r in records]


def test_a_whole_session_verifies(session: list[CompletionRecord], scorer: Scorer) -> None:
    """One trace of three turns at three temperatures: every trained token within 1e-4."""
    report = check(session, scorer)
    assert (report.traces, report.checked, report.deviations, report.unchecked) == (1, 72, [], {})
    assert report.versions["1"].largest <= 1e-4
    assert 0 < report.versions["1"].mean <= report.versions["1"].largest


def test_a_tampered_token_is_named_with_its_span(session: list[CompletionRecord], scorer: Scorer) -> None:
    """One value of the second turn is off by 0.01: that one, with its call, its span and both values."""
    report = check(tampered(session, 2, 5, -0.01), scorer)
    (found,) = report.deviations
    start = 24 + 2
    assert (found.span.completion_id, found.span.start, found.span.end, found.at) == (
        session[1].completion_id,
        start,
        start + 24,
        start + 5,
    )
    assert found.computed - found.recorded == pytest.approx(0.01, abs=1e-4)
    assert check(tampered(session, 2, 5, -0.01), scorer, tolerance=0.02).deviations == []


def test_nan_is_a_deviation(session: list[CompletionRecord], scorer: Scorer) -> None:
    """No comparison lets it through."""
    trajectory = built(session)
    values = unpack_logprobs(trajectory.traces[0].logprobs).copy()
    values[3] = float("nan")
    spoilt = replace(trajectory, traces=[replace(trajectory.traces[0], logprobs=pack_logprobs(values))])
    sampling = {r.completion_id: r.sampling_effective for r in session}
    report = verify([spoilt], sampling, scorer, version="1", tolerance=1e-4)
    assert [d.at for d in report.deviations] == [3]


def test_tokens_of_other_versions_are_not_checked(session: list[CompletionRecord], scorer: Scorer) -> None:
    """A directory is one version; what another one sampled is counted, inside a reply too."""
    spans = [VersionSpan(version="1", start=0, end=10), VersionSpan(version="2", start=10, end=24)]
    mixed = [replace(r, version_spans=spans) if r.call_seq == 2 else r for r in session]
    report = check(tampered(mixed, 2, 12, -1.0), scorer)
    assert (report.checked, report.deviations) == (58, [])
    assert report.unchecked == {("2", "another version"): 14}


def test_raw_logprobs_know_no_temperature(session: list[CompletionRecord], scorer: Scorer) -> None:
    """Mode `raw`: the recorded values are those before the temperature."""
    (first, *_) = session
    prompt = list(memoryview(first.suffix_ids).cast("i"))
    output = list(memoryview(first.output_ids).cast("i"))
    positions = range(len(prompt), len(prompt) + len(output))
    values = scorer.logprobs([*prompt, *output], positions, [1.0] * len(output))
    raw = replace(first, logprobs=pack_logprobs(values), logprobs_mode="raw")
    assert check([raw], scorer).deviations == []
    assert check([replace(raw, logprobs_mode="temperature")], scorer).deviations


@pytest.mark.parametrize(
    ("mode", "sampling", "reason"),
    [
        ("processed", {"c": {"temperature": 1.0}}, "logprobs_mode processed"),
        ("", {"c": {"temperature": 1.0}}, "logprobs_mode unknown"),
        ("temperature", {}, "sampling unknown"),
        ("raw", {}, ""),
        ("temperature", {"c": {"temperature": None}}, ""),
    ],
)
def test_what_cannot_be_checked_says_why(mode: str, sampling: dict[str, Any], reason: str) -> None:
    """A cut distribution, an unknown one, a call whose temperature isn't known."""
    trace = Trace(turns=[TurnSpan(completion_id="c", end=3, is_trained=True), TurnSpan(completion_id="d", end=4)])
    (span,) = spans_of(Trajectory(logprobs_mode=mode, traces=[trace]), trace, sampling)
    assert (span.unchecked, span.divisor) == (reason, 1.0)


def test_a_trace_that_the_model_cannot_read_is_not_checked(session: list[CompletionRecord], scorer: Scorer) -> None:
    """Longer than its context, or ids beyond its vocabulary: counted, not crashed."""

    class Small:
        context_length = 10
        vocab_size = scorer.vocab_size

        def logprobs(self, *_: object) -> list[float]:
            raise AssertionError("never asked")

    sampling = {r.completion_id: r.sampling_effective for r in session}
    report = verify([built(session)], sampling, Small(), version="1", tolerance=1e-4)
    assert report.unchecked == {("1", "longer than the model's context of 10"): 72}


def test_a_spliced_trace_is_found_out(session: list[CompletionRecord], scorer: Scorer) -> None:
    """Tokens that stand behind others than they were sampled after don't verify: that is what `off_context` means."""
    trajectory = built(session)
    (trace,) = trajectory.traces
    other = bytes(trace.response_ids)
    spliced = replace(trace, response_ids=(77).to_bytes(4, "little") + other[4:], turns=trace.turns[1:])
    sampling = {r.completion_id: r.sampling_effective for r in session}
    report = verify([replace(trajectory, traces=[spliced])], sampling, scorer, version="1", tolerance=1e-4)
    assert report.deviations


def test_no_model_is_an_error(tmp_path: Path) -> None:
    """A name on a hub is never fetched."""
    with pytest.raises(ModelError, match="no such model directory"):
        Scorer(tmp_path / "Qwen")


async def test_what_is_checked_is_the_newest_revision(memory_bus: MemoryBus, session: list[CompletionRecord]) -> None:
    """Of one trajectory the last one; calls give their temperatures."""
    for record in session:
        await memory_bus.publish(record)
    await memory_bus.publish(built(session[:1]))
    await memory_bus.publish(replace(built(session), revision=2))
    found = await find(memory_bus, "trajectory.built", SESSION)
    (one,) = [t async for t in trajectories(memory_bus, "trajectory.built", found)]
    assert (one.revision, one.counts.calls) == (2, 3)
    assert (found.versions, len(found.sampling)) == ({"1"}, 3)
    assert (await find(memory_bus, "trajectory.built", "another")).places == {}


async def test_the_command_names_what_is_off_and_exits_1(
    session: list[CompletionRecord], checkpoint: Path, tmp_path: Path
) -> None:
    """From an archive, as a script sees it."""
    for name, records in (("good", session), ("bad", tampered(session, 3, 0, -0.5))):
        async with MemoryBus(partitions=1) as bus:
            for record in records:
                await bus.publish(record)
            await bus.publish(built(records))
            await archive(bus, tmp_path / name)
    runner = CliRunner()

    def run(name: str, *options: str) -> Any:
        arguments = ["verify", SESSION, "--model", str(checkpoint), "--archive", str(tmp_path / name), *options]
        return runner.invoke(main.app, arguments)

    good = await asyncio.to_thread(run, "good", "--json")
    assert good.exit_code == 0, good.output
    assert json.loads(good.stdout.splitlines()[0])["versions"]["1"]["checked"] == 72
    bad = await asyncio.to_thread(run, "bad", "--json")
    assert bad.exit_code == 1
    (deviation,) = json.loads(bad.stdout.splitlines()[0])["deviations"]
    assert (deviation["completion_id"], deviation["token"]) == (session[2].completion_id, 52)
    other = await asyncio.to_thread(run, "good", "--version", "9")
    assert other.exit_code == 1
    assert "the trained ones are of version '1'" in str(other.exception)


async def test_a_mistyped_topic_is_a_usage_error(memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka never makes one by itself: the error says what there is to verify."""

    @asynccontextmanager
    async def log(_: Path | None) -> AsyncIterator[MemoryBus]:
        yield memory_bus

    monkeypatch.setattr("compose.cli.verify.open_log", log)
    done = await asyncio.to_thread(CliRunner().invoke, main.app, ["verify", "trajectory.bult", "--model", "somewhere"])
    assert isinstance(done.exception, CommandError)
    assert (str(done.exception), int(done.exception.code)) == ("there is no topic 'trajectory.bult'", 2)
    assert "trajectory.built" in done.exception.hint


@pytest.mark.parametrize("is_up", [True, False])
async def test_without_a_model_it_is_the_running_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_up: bool
) -> None:
    """Where none runs, the command asks for one before it reads anything."""
    monkeypatch.setenv("POLYNYA_STATE_DIR", str(tmp_path))
    if is_up:
        StackInfo(supervisor_pid=os.getpid(), model_dir=str(tmp_path / "weights"), is_ready=True).save(tmp_path)
        assert _own_model() == tmp_path / "weights"
        return
    with pytest.raises(CommandError, match="which weights sampled") as refused:
        _own_model()
    assert "--model DIRECTORY" in refused.value.hint


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [("cpu", "float31", "--dtype 'float31'"), ("cpu", "nn", "--dtype 'nn'"), ("gpu", "", "--device 'gpu'")],
)
def test_a_type_or_device_that_does_not_exist_is_refused_first(device: str, dtype: str, words: str) -> None:
    """Exit code 2 with what to type, before anything is read."""
    with pytest.raises(CommandError, match=words) as refused:
        _check_machine(device, dtype)
    assert (int(refused.value.code), bool(refused.value.hint)) == (2, True)


def test_a_gpu_that_is_not_there_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that was built without CUDA raises an AssertionError of its own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CommandError, match="sees no GPU"):
        _check_machine("cuda:1", "")
