"""Records as JSON: arrays become lists, nested records objects."""

from __future__ import annotations

import json

from compose.records_json import as_json
from schemas.arrays import pack_ids, pack_logprobs, pack_mask
from schemas.records import CompletionRecord, Status, Trace, Trajectory, VersionSpan


def test_token_arrays_become_lists() -> None:
    """int32 ids, float32 logprobs and the mask come out as numbers."""
    trace = Trace(
        prompt_ids=pack_ids([7]),
        response_ids=pack_ids([8, 9]),
        loss_mask=pack_mask([1, 0]),
        logprobs=pack_logprobs([-0.5, 0.0]),
    )
    shown = as_json(Trajectory(traces=[trace]))["traces"][0]
    assert (shown["prompt_ids"], shown["response_ids"], shown["loss_mask"], shown["logprobs"]) == (
        [7],
        [8, 9],
        [1, 0],
        [-0.5, 0.0],
    )


def test_a_record_is_valid_json_with_nested_records_and_open_fields() -> None:
    """Version spans and messages survive a trip through JSON."""
    record = CompletionRecord(
        messages=[{"role": "user", "content": "hi"}], version_spans=[VersionSpan(version="3", start=0, end=2)]
    )
    shown = json.loads(json.dumps(as_json(record)))
    assert shown["messages"] == [{"role": "user", "content": "hi"}]
    assert shown["version_spans"] == [{"version": "3", "start": 0, "end": 2}]
    assert shown["error"] is None
    assert Status(as_json(Trajectory())["builder"] or "none") is Status.NONE
