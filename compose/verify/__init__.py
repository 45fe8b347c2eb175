"""Whether recorded log-probabilities are those of the model: each trained token again, by one forward pass over its trace.

In: trajectories with their calls' sampling, and a model directory. Out: differences by weight version, and every token above the
tolerance by name.
"""

from __future__ import annotations

from compose.verify.check import Report, VersionReport, verify
from compose.verify.spans import Deviation, Span, spans_of

__all__ = ["Deviation", "Report", "Span", "VersionReport", "spans_of", "verify"]
