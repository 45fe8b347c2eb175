"""The tree of calls: a call's parent is the earlier call whose prompt + sampled ids is the longest prefix of its prompt.

Only tokens decide, so whatever hangs in the tree was sampled in exactly the context that stands above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.records import LineageStatus
from stream_processors.builders.base import Call
from stream_processors.builders.trie import Place

NO_PARENT = -1


@dataclass(frozen=True, slots=True)
class CallTree:
    """The forest over a lease's calls, by position; equal prompts have the same place in `prompts` (None: not in the tree).

    `children` lists nodes only. `is_continued[i]`: some later call's prompt starts with i's prompt and sampled ids, or the proxy
    found its conversation to go on from i: which proves that the harness received that reply. `shared[i]`: how many bytes of a root's prompt an earlier call has, too.
    """

    prompts: list[Place | None]
    parent: list[int]
    children: list[list[int]]
    is_node: list[bool]
    is_continued: list[bool]
    shared: list[int]


def grow_tree(calls: list[Call], places: Sequence[tuple[Place | None, Place | None]], is_node: list[bool]) -> CallTree:
    """Find every call's parent among the earlier nodes, from where prompts and replies end in the tree of tokens.

    A climb from each prompt to the next reply above it: as many steps as there are branches between, whatever the length.
    """
    parent = [NO_PARENT] * len(calls)
    children: list[list[int]] = [[] for _ in calls]
    carried = [0] * len(calls)
    is_continued = [False] * len(calls)
    shared = [0] * len(calls)
    replies: dict[Place, list[int]] = {}
    by_id = {call.record.completion_id: call.position for call in calls}
    trodden: set[Place] = set()
    for call in calls:
        prompt, end = places[call.position]
        if prompt is None or end is None:
            continue
        i = call.position
        twins = next((replies[place] for place in prompt.upwards() if place in replies), None)
        if twins is None:
            shared[i] = next((place.depth for place in prompt.upwards() if place in trodden), 0)
        for place in end.upwards():
            if place in trodden:
                break
            trodden.add(place)
        if call.record.lineage is LineageStatus.RESOLVED:
            named = by_id.get(call.record.parent_id, i)
            is_continued[named] = is_continued[named] or named < i
        if twins is not None:
            parent[i] = _choose(call, twins, calls, carried)
            carried[parent[i]] += 1
            is_continued[parent[i]] = True
        if is_node[i]:
            if parent[i] != NO_PARENT:
                children[parent[i]].append(i)
            replies.setdefault(end, []).append(i)
    return CallTree([prompt for prompt, _ in places], parent, children, is_node, is_continued, shared)


def _choose(call: Call, twins: list[int], calls: list[Call], carried: list[int]) -> int:
    """Among calls with the same prompt and the same sampled ids any is exact.

    The one that the record names, else one that surely was seen; of several such each gets its share of what continues
    them, since each of them was answered.
    """
    if len(twins) == 1:
        return twins[0]
    named = [i for i in twins if calls[i].record.completion_id == call.record.parent_id]
    seen = named or [i for i in twins if calls[i].is_delivered] or twins[:1]
    return min(seen, key=lambda i: carried[i])
