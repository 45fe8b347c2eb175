"""What schemathesis has to know of the API beside its document: names of things that exist, and bodies that aren't JSON."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import strategies

from schemas import ids

TASK = "known"
"""A task that the served API has seen from beginning to end."""
KNOWN = {"task_id": TASK, "session_id": ids.session_id(ids.group_id(TASK), 0), "node_id": "worker-1"}

schemathesis.openapi.media_type(
    "application/x-ndjson",
    strategies.sampled_from(
        [b'{"instruction":"a","harness":{"name":"shell","options":{"command":"true"}}}\n', b"{}\n", b"not json", b""]
    ),
)


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Half of the requests are about something that exists."""
    del context
    if path_parameters and len(str(path_parameters)) % 2:
        return {name: KNOWN.get(name, value) for name, value in path_parameters.items()}
    return path_parameters
