"""Supervised fine-tuning: conversations of accepted sessions, in OpenAI's message form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from schemas import json_text
from schemas.records import ScoredTrajectory
from trainer_sink.export.columns import Columns, message_columns, scalar, tools_column
from trainer_sink.export.dataset import Progress, Row, Sessions
from trainer_sink.export.examples import Acceptance, Choice, Example, examples_of, tokens_of
from trainer_sink.export.shape import Shape, cleaned


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRows:
    """A row for each conversation of each accepted session; the same conversation of two sessions stands there once."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    choice: Choice = field(default_factory=Choice)
    shape: Shape = field(default_factory=Shape)

    kind: ClassVar[str] = "sft"
    known_by: ClassVar[str] = "session_id"

    def columns(self) -> Columns:
        """See `Maker.columns`."""
        return [
            {"name": "messages", "list": message_columns(self.shape)},
            tools_column(self.shape),
            *(scalar(name) for name in ("id", "task_id", "group_id", "session_id")),
            scalar("trace_index", "int64"),
            *(scalar(name) for name in ("branch", "harness", "policy_id")),
            scalar("reward", "float64"),
            scalar("tokens", "int64"),
            scalar("turns", "int64"),
            scalar("metadata"),
        ]

    def options(self) -> dict[str, Any]:
        """See `Maker.options`."""
        return {**self.acceptance.to_json(), **self.choice.to_json(), **self.shape.to_json()}

    def rows(self, sessions: Sessions, progress: Progress) -> Iterator[tuple[str, Row]]:
        """See `Maker.rows`."""
        counts, seen = progress.counts, set(progress.known_ids)
        for _, scored in sessions:
            counts.sessions += 1
            if reason := self.acceptance.refuses(scored):
                counts.refused[reason] += 1
                continue
            if scored.session_id in progress.known:
                counts.refused["exported_before"] += 1
                continue
            found = examples_of(scored, self.choice, self.shape)
            new: list[Example] = []
            for example in found.taken:
                if example.digest in seen:
                    found.left_out["duplicate"] += 1
                else:
                    seen.add(example.digest)
                    new.append(example)
            counts.traces += len(new) + found.left_out.total()
            counts.examples += len(new)
            counts.left_out.update(found.left_out)
            if not new:
                counts.refused[next(iter(found.left_out))] += 1
                continue
            counts.exported += 1
            progress.makers.add(scored)
            for example in new:
                counts.repaired += example.conversation.repaired
                yield scored.task_id, self._row(scored, example)

    def _row(self, scored: ScoredTrajectory, example: Example) -> Row:
        talk, spec = example.conversation, scored.spec
        assert spec is not None
        tools = talk.tools if self.shape.tools == "list" else json_text.dump(talk.tools)
        about = {
            "id": example.digest,
            "task_id": scored.task_id,
            "group_id": scored.group_id,
            "session_id": scored.session_id,
            "trace_index": example.trace.index,
            "branch": example.trace.branch,
            "harness": spec.harness,
            "policy_id": scored.policy_id,
            "reward": scored.reward,
            "tokens": tokens_of(example.trace),
            "turns": talk.turns,
            "metadata": json_text.dump(spec.metadata),
        }
        return {"messages": talk.messages, "tools": tools, **cleaned(about)}
