"""Which earlier call a request goes on from, so that the engine conditions on the very tokens that it sampled.

In: a lease's records, as they are made here or read back from the log. Out: for a new request its parent (or why it has none), its
prompt's ids, and the delta that its record holds. Pure, but for `rebuild` (reads the log).
"""

from __future__ import annotations

from capture_proxy.lineage.index import Lineage
from capture_proxy.lineage.nodes import Found, Node

__all__ = ["Found", "Lineage", "Node"]
