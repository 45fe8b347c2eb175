"""The calls of one lease, grown fact by fact: what the assembler holds while a session runs, and what builders work on.

Adding a record costs what is new in it. The state after a set of facts is the same in whatever order they came, so a lease
that was grown while its session ran and one that is built from the log in one go give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas import codec, ids
from schemas.records import CompletionDelivery, CompletionRecord
from stream_processors.builders.base import Call, CompletionFact
from stream_processors.builders.trie import ID_BYTES, Place, TokenTrie

Number = tuple[int, int]
"""(writer, call_seq): the canonical order."""


class Lease:
    """The facts of one lease, and where its calls' tokens stand.

    A prompt is the first `prefix_len` tokens of (its parent's prompt + sampled ids), verified by their digest, followed by
    `suffix_ids`. What doesn't verify is never guessed: such a call, and what hangs on it, has no place.
    """

    def __init__(self, facts: Iterable[CompletionFact] = ()) -> None:
        self._trie = TokenTrie()
        self._records: dict[Number, CompletionRecord] = {}
        self._delivered: dict[Number, bool] = {}
        self._conflicted: set[Number] = set()
        self._number_of: dict[str, Number] = {}
        self._prompt: dict[Number, Place | None] = {}
        self._end: dict[Number, Place | None] = {}
        self._waiting: dict[str, list[Number]] = {}
        self._is_spoilt = False
        for fact in facts:
            self.add(fact)

    def add(self, fact: CompletionFact) -> None:
        """Take one fact; the same again changes nothing.

        Of two different records under one number the one with the lower digest is kept, so that the choice doesn't
        depend on arrival, and the call is marked as conflicted.
        """
        if isinstance(fact, CompletionDelivery):
            number = (fact.writer, fact.call_seq)
            self._delivered[number] = fact.delivered or self._delivered.get(number, False)
        elif isinstance(fact, CompletionRecord):
            number = (fact.writer, fact.call_seq)
            known = self._records.get(number)
            if known is None:
                self._records[number] = fact
                self._name(fact, number)
                self._place(number)
            elif known != fact:
                self._name(fact, number)
                self._conflicted.add(number)
                self._records[number] = min(known, fact, key=_digest)
                self._is_spoilt = True  # what hangs on this call may stand elsewhere: placed anew when it is asked for

    def _name(self, record: CompletionRecord, number: Number) -> None:
        """Which call an id means: of several that claim it the first in canonical order, whichever came first."""
        known = self._number_of.setdefault(record.completion_id, number)
        if known != number:
            self._number_of[record.completion_id] = min(known, number)
            self._is_spoilt = True

    def calls(self) -> list[Call]:
        """The calls in canonical order, with their delivery facts merged by OR."""
        return [
            Call(self._records[number], position, self._delivered.get(number), number in self._conflicted)
            for position, number in enumerate(sorted(self._records))
        ]

    def numbers(self) -> set[Number]:
        """The calls whose records are in."""
        return set(self._records)

    def places(self) -> list[tuple[Place | None, Place | None]]:
        """Per call, in canonical order, where its prompt ends and where its reply ends; None where that can't be told."""
        if self._is_spoilt:
            self._replace()
        return [(self._prompt.get(number), self._end.get(number)) for number in sorted(self._records)]

    def _replace(self) -> None:
        self._trie = TokenTrie()
        self._prompt, self._end, self._waiting, self._is_spoilt = {}, {}, {}, False
        for number in sorted(self._records):
            self._place(number)

    def _place(self, first: Number) -> None:
        """Find the place of a call, and of those that waited for it."""
        ready = [first]
        while ready:
            number = ready.pop()
            record = self._records[number]
            start: Place | None = self._trie.root
            if record.prefix_len > 0:
                parent = self._number_of.get(record.parent_id)
                if parent is None or parent not in self._prompt:
                    self._waiting.setdefault(record.parent_id, []).append(number)
                    continue
                start = self._continue(record, self._end[parent]) if parent < number else None
            self._stand(number, record, start)
            ready += self._waiting.pop(record.completion_id, ())

    def _continue(self, record: CompletionRecord, parent: Place | None) -> Place | None:
        """The verified place that a delta begins at."""
        depth = record.prefix_len * ID_BYTES
        if parent is None or depth > parent.depth:
            return None
        start = self._trie.at_depth(parent, depth)
        return start if start.digest() == record.prefix_digest else None

    def _stand(self, number: Number, record: CompletionRecord, start: Place | None) -> None:
        prompt: Place | None = None
        end: Place | None = None
        if start is not None:
            length = start.depth + len(record.suffix_ids)
            is_torn = len(record.suffix_ids) % ID_BYTES or len(record.output_ids) % ID_BYTES
            # 0 means that the producer didn't count, as the schema's default says.
            if not is_torn and record.prompt_len in (0, length // ID_BYTES):
                prompt = self._trie.insert(start, record.suffix_ids)
                end = self._trie.insert(prompt, record.output_ids)
        self._prompt[number], self._end[number] = prompt, end


def _digest(record: CompletionRecord) -> str:
    return ids.digest(codec.encode(record).value)
