"""Grading after the fact: sessions that are over are read from the log, graded again, and their artifacts fetched."""

from __future__ import annotations
