"""The builder `prefix_merging`: the root-to-leaf paths of the tree of calls, each token exactly as the engine saw it.

A call joins a trace only when its prompt starts with its parent's prompt and sampled ids; what its prompt holds
after that is interstitial (mask 0). Anything else begins a new trace, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from schemas.lineage import SESSION_START
from schemas.records import Trace, TurnSpan
from schemas.resolve import reply_message
from stream_processors.builders.analysis import Analysis, analyse
from stream_processors.builders.base import SPLICE, Built, Options
from stream_processors.builders.lease import Lease
from stream_processors.builders.messages import Conversations, resolve_tools
from stream_processors.builders.roots import GOES_ON, Root, explain_roots
from stream_processors.builders.splice import splices
from stream_processors.builders.tree import NO_PARENT
from stream_processors.builders.trie import ID_BYTES, Place

EXACT: Final = "exact"
OFF_CONTEXT: Final = "off_context"
"""Fidelity of a turn: sampled after exactly the tokens that stand before it, or (spliced traces only) after others."""


def build_prefix_merging(lease: Lease, policy_id: str, options: Options) -> Built:
    """The traces of one lease.

    Every trace ends in a trained reply: a last turn that can't be trained adds nothing and is left out, in the middle
    it stays as context with mask 0. A reply that several traces share is trained in the first of them.
    """
    analysis = analyse(lease, policy_id)
    conversations = Conversations(analysis.calls)
    roots = explain_roots(analysis.calls, analysis.tree, conversations)
    spliced: dict[int, bytes] = {}
    if options.drift == SPLICE and (spliced := splices(analysis, roots, options.end_of_turn_id)):
        analysis = _hung(analysis, roots, spliced)
    weaver = _Weaver(analysis, roots, spliced, conversations)
    return analysis.finish(weaver.weave(), weaver.first_trace)


def _hung(analysis: Analysis, roots: dict[int, Root], spliced: dict[int, bytes]) -> Analysis:
    """The analysis with the spliced calls hung on their predecessors, which makes them no roots any more."""
    tree = analysis.tree
    parent, children = list(tree.parent), [list(c) for c in tree.children]
    for i in spliced:
        parent[i] = roots[i].follows
        children[parent[i]] = sorted([*children[parent[i]], i])
        del roots[i]
    return replace(analysis, tree=replace(tree, parent=parent, children=children))


@dataclass(slots=True)
class _Weaver:
    """Walks the tree and writes one trace per path."""

    analysis: Analysis
    roots: dict[int, Root]
    spliced: dict[int, bytes]
    conversations: Conversations
    reach: list[int] = field(default_factory=list)
    first_trace: dict[int, int] = field(default_factory=dict)
    traces: list[Trace] = field(default_factory=list)

    def weave(self) -> list[Trace]:
        self.reach = self._reaches()
        tools = resolve_tools(self.analysis.calls)
        live = [i for i in self.roots if self.reach[i] != NO_PARENT]
        retried = self._retried(live)
        for path in self._paths(sorted(live)):
            self.traces.append(self._trace(path, retried, tools[path[-1]]))
        return self.traces

    def _reaches(self) -> list[int]:
        """Per node the latest trainable call in its subtree, -1 when there is none: such a branch is left out."""
        reach = [NO_PARENT] * len(self.analysis.calls)
        for i in range(len(reach) - 1, -1, -1):  # children stand behind their parents
            if self.analysis.tree.is_node[i]:
                latest = i if not self.analysis.reasons[i] else NO_PARENT
                for child in self.analysis.tree.children[i]:
                    latest = max(latest, reach[child])
                reach[i] = latest
        return reach

    def _paths(self, roots: list[int]) -> Iterable[list[int]]:
        """Root-to-leaf paths; at a fork the branch that goes on longest comes first, it is the main line."""
        path: list[int] = []
        stack = [(root, 0) for root in reversed(roots)]
        while stack:
            i, depth = stack.pop()
            del path[depth:]
            path.append(i)
            children = [c for c in self.analysis.tree.children[i] if self.reach[c] != NO_PARENT]
            if not children:
                yield list(path)
            # The last pushed is walked first.
            stack += [(c, depth + 1) for c in sorted(children, key=self.reach.__getitem__)]

    def _retried(self, roots: list[int]) -> set[int]:
        """Calls whose very prompt was also answered by a call that went on longer."""
        groups: dict[tuple[int, Place], list[int]] = {}
        for i in [*roots, *(c for cs in self.analysis.tree.children for c in cs if self.reach[c] != NO_PARENT)]:
            groups.setdefault((self.analysis.tree.parent[i], self.analysis.place(i)), []).append(i)
        return {i for group in groups.values() for i in group if i != max(group, key=lambda c: self.reach[c])}

    def _trace(self, path: list[int], retried: set[int], tools: Any) -> Trace:
        index = len(self.traces)
        root = self.roots[path[0]]
        shared = sum(i in self.first_trace for i in path)  # a prefix of the path
        own = path[shared:]
        parent = self.first_trace[path[shared - 1]] if shared else self.first_trace.get(root.follows, NO_PARENT)
        for i in own:
            self.first_trace[i] = index
        last = self.analysis.calls[path[-1]].record
        ids, mask, logprobs, turns = self._tokens(path, index)
        return Trace(
            index=index,
            branch=self._branch(own[0], root, shared, retried, parent),
            parent_trace=parent,
            root_reason="" if shared else root.reason,
            prompt_ids=self.analysis.place(path[0]).since(0),
            response_ids=ids,
            loss_mask=mask,
            logprobs=logprobs,
            turns=turns,
            messages=[*self.conversations.messages(path[-1]), reply_message(last)],
            tools=tools,
            finish_reason=last.finish_reason,
            is_off_context=turns[-1].fidelity == OFF_CONTEXT,
            prefix_break=-1
            if shared or root.reason == SESSION_START
            else self.analysis.tree.shared[path[0]] // ID_BYTES,
        )

    def _branch(self, i: int, root: Root, shared: int, retried: set[int], parent: int) -> str:
        hint = self.analysis.calls[i].record.branch_hint
        if hint:
            return hint
        if i in retried:
            return "retry"
        if shared:
            return "branch"
        if root.reason in GOES_ON and parent != NO_PARENT:
            return self.traces[parent].branch
        return "main" if all(t.branch != "main" for t in self.traces) else "sub-agent"

    def _tokens(self, path: list[int], index: int) -> tuple[bytes, bytes, bytes, list[TurnSpan]]:
        """Response ids, mask, logprobs and turns of a path, behind the prompt of its first call."""
        ids: list[bytes] = []
        mask: list[bytes] = []
        logprobs: list[bytes] = []
        turns: list[TurnSpan] = []
        position = 0
        seen = self.analysis.place(path[0]).depth
        fidelity = EXACT
        for i in path:
            record = self.analysis.calls[i].record
            place = self.analysis.place(i)
            if i in self.spliced and i != path[0]:
                between, fidelity = self.spliced[i], OFF_CONTEXT
            else:
                between = place.since(seen)
            is_trained = not self.analysis.reasons[i] and self.first_trace[i] == index
            ids += [between, record.output_ids]
            n_between, n_sampled = len(between) // ID_BYTES, len(record.output_ids) // ID_BYTES
            mask += [bytes(n_between), (b"\x01" if is_trained else b"\x00") * n_sampled]
            # float32 zeros are zero bytes
            logprobs += [bytes(len(between)), record.logprobs if is_trained else bytes(len(record.output_ids))]
            start = position + n_between
            position = start + n_sampled
            turns.append(
                TurnSpan(
                    completion_id=record.completion_id,
                    start=start,
                    end=position,
                    is_trained=is_trained,
                    fidelity=fidelity,
                    version_spans=record.version_spans,
                )
            )
            seen = place.depth + len(record.output_ids)
        return b"".join(ids), b"".join(mask), b"".join(logprobs), turns
