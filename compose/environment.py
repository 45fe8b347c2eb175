"""Environment variables that look like settings and are none: nobody would notice otherwise that they do nothing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from compose.settings import ENV_PREFIX, StackSettings

# Our variables that aren't settings of a stack, so that none of them is taken for a slip.
_OTHERS = frozenset(
    {"cache", "harness_dir", "torch_index", "proxy_id", "spool_dir", "part_name", "api_key", "callback_key"}
)
_LIKENESS = 0.8


def slips(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that no setting has the name of, and the one that each was probably meant to be."""
    known = StackSettings.model_fields
    found: dict[str, str] = {}
    for variable in sorted(environment):
        name = variable.removeprefix(ENV_PREFIX).lower()
        if not variable.startswith(ENV_PREFIX) or name in known or name in _OTHERS:
            continue
        if near := difflib.get_close_matches(name, known, n=1, cutoff=_LIKENESS):
            found[variable] = ENV_PREFIX + near[0].upper()
    return found
