"""The bench's one error."""

from __future__ import annotations


class BenchError(RuntimeError):
    """A measurement that can't be made, or whose result would mean nothing; the message says why."""
