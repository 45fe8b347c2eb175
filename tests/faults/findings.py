"""What a CLI did about a fault, from the records of its calls and the end of its run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.records import CompletionRecord, CompletionState
from tests.faults.faults import FAULTY_CALL
from tests.faults.task import FINAL, expected_files
from tests.faults.trials import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cell of the table. All but `waited_s` comes out the same every time."""

    record: str
    """How the faulty call is recorded."""
    reaction: str
    """What the CLI did next."""
    waited_s: float | None
    """How long after the faulty call's end; None: it made no further call."""
    calls: int
    trained: str
    """How many of them are trained, and why others aren't that didn't fail."""
    end: str
    """How the run ended."""


def finding(trial: Trial) -> Finding:
    """What came of one trial."""
    faulty = trial.calls[FAULTY_CALL - 1]
    after = trial.calls[FAULTY_CALL] if len(trial.calls) > FAULTY_CALL else None
    return Finding(
        record=_record(faulty),
        reaction=_reaction(faulty, after),
        waited_s=None if after is None else max(0.0, (after.started_at - faulty.finished_at) / 1000),
        calls=len(trial.calls),
        trained=_trained(trial),
        end=_end(trial),
    )


def is_done(trial: Trial) -> bool:
    """Whether the task is solved and the closing sentence arrived, whatever the CLI says of itself."""
    delivered = {fact.completion_id for fact in trial.deliveries if fact.delivered}
    is_said = any(FINAL in call.text and call.completion_id in delivered for call in finished(trial))
    return is_said and set(expected_files(in_call=trial.fault.in_call)) <= trial.run.files.keys()


def finished(trial: Trial) -> list[CompletionRecord]:
    """The calls that ended well."""
    return [call for call in trial.calls if call.state is CompletionState.FINISHED]


def _trained(trial: Trial) -> str:
    counts = trial.trajectory.counts
    others = [f"{reason}: {number}" for reason, number in sorted(counts.untrainable.items()) if reason != "failed"]
    return f"{counts.trained} ({', '.join(others)})" if others else str(counts.trained)


def _record(call: CompletionRecord) -> str:
    if call.error is not None:
        return f"{call.state.value}, {call.error.kind}, {_seen(call.error.status)}"
    parts = [call.state.value, call.finish_reason, "" if call.parse_status == "ok" else call.parse_status]
    return ", ".join(part for part in parts if part)


def _seen(status: int) -> str:
    return "error in the stream" if status == 200 else str(status)


def _reaction(faulty: CompletionRecord, after: CompletionRecord | None) -> str:
    if after is None:
        return "no further call"
    asked, asks = _new(faulty), _new(after)
    if after.parent_id == faulty.completion_id:
        return "goes on from it"
    if after.branch_hint:
        return "asks something else first"
    if after.parent_id != faulty.parent_id:
        return "asks with another history"
    if asks == asked:
        return "asks again" if after.is_stream == faulty.is_stream else "asks again, not streamed"
    if asks[: len(asked)] == asked:
        return "goes on from what it got" if _has_reply(asks[len(asked) :]) else "asks again, with more words"
    return "asks with another history"


def _new(call: CompletionRecord) -> list[Any]:
    messages: list[Any] = call.messages if isinstance(call.messages, list) else []
    return [call.messages_prefix, *messages]


def _has_reply(messages: list[Any]) -> bool:
    return any(isinstance(message, dict) and message.get("role") == "assistant" for message in messages)


def _end(trial: Trial) -> str:
    if trial.run.result.timed_out:
        return "hangs"
    if not trial.run.verdict.succeeded:
        return f"failed, exit code {trial.run.result.exit_code}"
    return "done" if is_done(trial) else "ends as if done, but isn't"
