"""Evaluations: a task set, run at one version of a policy's weights, as pass@k with its uncertainty; and two of them side by side."""

from __future__ import annotations
