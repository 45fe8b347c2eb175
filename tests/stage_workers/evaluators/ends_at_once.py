"""A program, which somebody names as an evaluator."""

from __future__ import annotations

import sys

sys.exit(3)
