"""The leases that grow in memory while their sessions run: a cache over the kept records, bounded by bytes.

A lease that isn't here (after a restart, a rebalance, or when there are too many) is read from the kept records when it closes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from stream_processors.builders import Lease

MOST_BYTES: Final = 256 << 20
"""About how much memory all of them may take: some hundred sessions of fifty turns at least, some thousand as deltas."""

BYTES_PER_WIRE_BYTE: Final = 3
"""What a decoded record takes: its arrays as they are, its texts some times what they were on the wire."""

RECORD_BYTES: Final = 3_000
"""What any record takes, beside that."""


class GrownLeases:
    """Leases by session and lease id; the ones that were touched longest ago give way first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._leases: OrderedDict[tuple[str, str], tuple[Lease, int]] = OrderedDict()
        self._size_bytes = 0

    def get(self, session_id: str, lease_id: str) -> Lease | None:
        """The lease as far as it has grown, if it is here."""
        held = self._leases.get((session_id, lease_id))
        return None if held is None else held[0]

    def put(self, session_id: str, lease_id: str, lease: Lease, wire_bytes: int) -> None:
        """Hold a lease that grew by a record of so many bytes; others may have to go."""
        _, size = self._leases.pop((session_id, lease_id), (None, 0))
        grown = wire_bytes * BYTES_PER_WIRE_BYTE + RECORD_BYTES
        self._leases[session_id, lease_id] = (lease, size + grown)
        self._size_bytes += grown
        while self._size_bytes > self._most_bytes:
            _, (_, size) = self._leases.popitem(last=False)
            self._size_bytes -= size

    def drop(self, session_id: str, lease_id: str) -> None:
        """Forget a lease."""
        _, size = self._leases.pop((session_id, lease_id), (None, 0))
        self._size_bytes -= size

    def clear(self) -> None:
        """Forget all of them."""
        self._leases.clear()
        self._size_bytes = 0
