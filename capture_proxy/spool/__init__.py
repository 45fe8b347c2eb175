"""The proxy's memory on disk: what a call started and how it ended is here before Kafka has it, and until Kafka has it."""

from __future__ import annotations

from capture_proxy.spool.journal import SpoolWriteError
from capture_proxy.spool.spool import Durability, Spool, SpoolRefusalError

__all__ = ["Durability", "Spool", "SpoolRefusalError", "SpoolWriteError"]
