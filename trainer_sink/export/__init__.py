"""Scored trajectories as files: each module writes one format, reads the log to its end, and says what it left out."""
