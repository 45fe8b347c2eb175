"""The tree of calls: a call's parent is the earlier call whose prompt + sampled ids is the longest prefix of its prompt.

Only tokens decide, so whatever hangs in the tree was sampled in exactly the context that stands above it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right, insort
from dataclasses import dataclass, field

from stream_processors.builders.base import Call

NO_PARENT = -1


@dataclass(frozen=True, slots=True)
class CallTree:
    """The forest over a lease's calls, by position; `digests` are of the prompts (equal prompts, equal digests).

    `children` lists nodes only. `is_continued[i]`: some later call's prompt starts with i's prompt and sampled ids,
    which proves that the harness received that reply.
    """

    parent: list[int]
    children: list[list[int]]
    is_node: list[bool]
    is_continued: list[bool]
    digests: list[bytes]


@dataclass(slots=True)
class _Reaches:
    """Where calls end: the digest of prompt + sampled ids → the calls, and the distinct lengths in ascending order."""

    by_digest: dict[bytes, list[int]] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)

    def add(self, length: int, digest: bytes, position: int) -> None:
        self.by_digest.setdefault(digest, []).append(position)
        index = bisect_right(self.lengths, length)
        if index == 0 or self.lengths[index - 1] != length:
            insort(self.lengths, length)


def grow_tree(calls: list[Call], prompts: list[bytes | None], is_node: list[bool]) -> CallTree:
    """Find every call's parent among the earlier nodes.

    One pass over each prompt: an incremental hash stops at each length at which an earlier call ends, so the cost
    is that of reading the prompts once, not that of comparing them pairwise.
    """
    parent = [NO_PARENT] * len(calls)
    children: list[list[int]] = [[] for _ in calls]
    is_continued = [False] * len(calls)
    digests = [b""] * len(calls)
    reaches = _Reaches()
    for call, prompt in zip(calls, prompts, strict=True):
        if prompt is None:
            continue
        i = call.position
        hasher = hashlib.blake2b(digest_size=16)
        read = 0
        found: list[int] = []
        for length in reaches.lengths[: bisect_right(reaches.lengths, len(prompt))]:
            hasher.update(memoryview(prompt)[read:length])
            read = length
            found = reaches.by_digest.get(hasher.copy().digest(), found)
        hasher.update(memoryview(prompt)[read:])
        digests[i] = hasher.copy().digest()
        if found:
            parent[i] = _choose(found, calls)
            is_continued[parent[i]] = True
        if is_node[i]:
            if parent[i] != NO_PARENT:
                children[parent[i]].append(i)
            hasher.update(call.record.output_ids)
            reaches.add(len(prompt) + len(call.record.output_ids), hasher.digest(), i)
    return CallTree(parent, children, is_node, is_continued, digests)


def _choose(twins: list[int], calls: list[Call]) -> int:
    """Among calls with the same prompt and the same sampled ids any is exact; one that was delivered was surely seen."""
    return next((i for i in twins if calls[i].is_delivered), twins[0])
