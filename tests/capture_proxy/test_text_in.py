"""A call at an engine that renders by itself: how its prompt's ids are noted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from capture_proxy.text_in import note_prompt, stand_alone
from schemas import arrays
from tests.capture_proxy.lineage.toy import OPENING, World


def test_the_prompt_that_every_event_repeats_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long one costs milliseconds each time, which per sampled token would be most of the loop's time."""
    packed: list[int] = []
    pack_ids = arrays.pack_ids

    def count(ids: Sequence[int]) -> bytes:
        packed.append(len(ids))
        return pack_ids(ids)

    call = World().begin(OPENING)
    stand_alone(call)
    monkeypatch.setattr(arrays, "pack_ids", count)
    ids = list(range(2000))
    note_prompt(call, None)
    for _ in range(100):
        note_prompt(call, ids)
    assert packed == [2000]
    assert call.prompt.placed is not None
    assert (list(call.prompt.ids), call.prompt.placed.suffix_ids) == (ids, pack_ids(ids))
