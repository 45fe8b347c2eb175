"""Preference pairs: within a group, the same prompt answered better and worse; TRL's conversational form with an explicit prompt."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from schemas import json_text
from schemas.records import ScoredTrajectory
from trainer_sink.export.columns import Columns, message_columns, scalar, tools_column
from trainer_sink.export.dataset import Progress, Row, Sessions
from trainer_sink.export.examples import Acceptance, Choice, examples_of
from trainer_sink.export.shape import Conversation, Shape, cleaned
from trainer_sink.export.spool import Entry


@dataclass(frozen=True, slots=True)
class Side:
    """A session that can be compared: what was asked, and what came of it."""

    scored: ScoredTrajectory
    index: int
    reward: float
    talk: Conversation
    prompt: int
    """How many messages stand before the first answer."""

    def key(self) -> str:
        """The same for the same prompt under the same tools."""
        return json_text.dump([self.talk.messages[: self.prompt], self.talk.tools])


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRows:
    """Rows of pairs. Each session is in one pair at most: the best with the worst, the second best with the second worst, ….

    `margin`: the least difference of rewards; ties are never pairs. `per_group`: so many pairs of a group at most.
    """

    acceptance: Acceptance = field(default_factory=lambda: Acceptance(min_reward=None))
    choice: Choice = field(default_factory=Choice)
    shape: Shape = field(default_factory=Shape)
    margin: float = 0.0
    per_group: int = 1
    allow_incomplete: bool = False
    """Also groups of which sessions are still out."""

    kind: ClassVar[str] = "preferences"
    known_by: ClassVar[str] = "group_id"

    def columns(self) -> Columns:
        """See `Maker.columns`."""
        return [
            *({"name": name, "list": message_columns(self.shape)} for name in ("prompt", "chosen", "rejected")),
            tools_column(self.shape),
            *(scalar(name) for name in ("id", "task_id", "group_id", "session_chosen", "session_rejected")),
            *(scalar(name) for name in ("harness", "policy_id")),
            *(scalar(name, "float64") for name in ("score_chosen", "score_rejected", "margin")),
            scalar("metadata"),
        ]

    def options(self) -> dict[str, Any]:
        """See `Maker.options`."""
        return {
            **self.acceptance.to_json(),
            **self.choice.to_json(),
            **self.shape.to_json(),
            "margin": self.margin,
            "per_group": self.per_group,
            "allow_incomplete": self.allow_incomplete,
        }

    def rows(self, sessions: Sessions, progress: Progress) -> Iterator[tuple[str, Row]]:
        """See `Maker.rows`."""
        counts = progress.counts
        for group_id, members in itertools.groupby(sessions, key=lambda one: one[1].group_id):
            group = list(members)
            counts.groups += 1
            counts.sessions += len(group)
            reasons: dict[str, str] = {}
            pairs: list[tuple[Side, Side]] = []
            if group_id in progress.known:
                reason = "exported_before"
            elif not self.allow_incomplete and (reason := _incomplete(group)):
                _keep_open(group, progress)
            else:
                pairs, reason = self._pairs(group, reasons)
            if reason:
                counts.groups_refused[reason] += 1
            else:
                counts.groups_exported += 1
            paired = {side.scored.session_id for pair in pairs for side in pair}
            for _, scored in group:
                if scored.session_id in paired:
                    counts.exported += 1
                    progress.makers.add(scored)
                else:
                    counts.refused[reasons.get(scored.session_id) or reason or "unpaired"] += 1
            for better, worse in pairs:
                counts.repaired += better.talk.repaired + worse.talk.repaired
                yield better.scored.task_id, self._row(better, worse)

    def _pairs(
        self, group: Sequence[tuple[Entry, ScoredTrajectory]], reasons: dict[str, str]
    ) -> tuple[list[tuple[Side, Side]], str]:
        """The pairs of a group, or the reason why there is none; `reasons` gets the sessions that can't be compared."""
        sides: list[Side] = []
        for entry, scored in group:
            side, reason = self._side(entry, scored)
            if side is None:
                reasons[scored.session_id] = reason
            else:
                sides.append(side)
        if len(sides) < 2:
            alike = set(reasons.values())
            return [], alike.pop() if len(alike) == 1 and not sides else "too_few"
        by_prompt: dict[str, list[Side]] = {}
        for side in sides:
            by_prompt.setdefault(side.key(), []).append(side)
        matches = [pair for same in by_prompt.values() for pair in _matched(same)]
        if not matches:
            return [], "prompt_differs"
        wide = [pair for pair in matches if 0 < pair[0].reward - pair[1].reward >= self.margin]
        if not wide:
            return [], "tie" if all(a.reward == b.reward for a, b in matches) else "margin"
        found = [pair for pair in wide if _answer(pair[0]) != _answer(pair[1])]
        if not found:
            return [], "same_answer"
        found.sort(key=lambda pair: (pair[1].reward - pair[0].reward, pair[0].index, pair[1].index))
        return found[: self.per_group], ""

    def _side(self, entry: Entry, scored: ScoredTrajectory) -> tuple[Side | None, str]:
        if reason := self.acceptance.refuses(scored):
            return None, reason
        if scored.reward is None or not math.isfinite(scored.reward):
            return None, "no_reward"
        found = examples_of(scored, self.choice, self.shape)
        if not found.taken:
            return None, next(iter(found.left_out))
        if len(found.taken) > 1:
            return None, "several_conversations"
        talk = found.taken[0].conversation
        first = next(i for i, message in enumerate(talk.messages) if message["role"] == "assistant")
        if first == 0 or talk.messages[first - 1]["role"] == "system":  # TRL takes no prompt that ends with one
            return None, "no_prompt"
        return Side(scored, entry.index, scored.reward, talk, first), ""

    def _row(self, better: Side, worse: Side) -> Row:
        scored, spec = better.scored, better.scored.spec
        assert spec is not None
        tools = better.talk.tools
        name = f"{scored.session_id}>{worse.scored.session_id}"
        about = {
            "id": hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest(),
            "task_id": scored.task_id,
            "group_id": scored.group_id,
            "session_chosen": scored.session_id,
            "session_rejected": worse.scored.session_id,
            "harness": spec.harness,
            "policy_id": scored.policy_id,
            "score_chosen": better.reward,
            "score_rejected": worse.reward,
            "margin": better.reward - worse.reward,
            "metadata": json_text.dump(spec.metadata),
        }
        return {
            "prompt": better.talk.messages[: better.prompt],
            "chosen": _answer(better),
            "rejected": _answer(worse),
            "tools": tools if self.shape.tools == "list" else json_text.dump(tools),
            **cleaned(about),
        }


def _answer(side: Side) -> list[dict[str, Any]]:
    return side.talk.messages[side.prompt :]


def _matched(same: list[Side]) -> list[tuple[Side, Side]]:
    """Best with worst, second best with second worst, …; sessions of one prompt."""
    ranked = sorted(same, key=lambda side: (-side.reward, side.index))
    return [(ranked[i], ranked[-1 - i]) for i in range(len(ranked) // 2)]


def _incomplete(group: Sequence[tuple[Entry, ScoredTrajectory]]) -> str:
    spec = group[0][1].spec
    assert spec is not None
    return "incomplete" if len({entry.index for entry, _ in group}) < spec.group_size else ""


def _keep_open(group: Sequence[tuple[Entry, ScoredTrajectory]], progress: Progress) -> None:
    """The next run reads this group again, from its first record on."""
    for entry, _ in group:
        number, offset = entry.source.partition, entry.source.offset
        progress.open_from[number] = min(offset, progress.open_from.get(number, offset))
