"""Stream processors: the orchestrator, the assembler and the joiner, as Faust apps around pure cores.

In: tasks, the facts of sessions, captured model calls, rewards. Out: stage commands, the state of sessions, trajectories and
scored trajectories. `run(names, settings)` hosts one or several of them in this process; `changelog_topics()` lists the
topics of their tables, which an admin has to create beside the catalogue's. `builders` are the pure functions that merge calls.
"""

from __future__ import annotations

from stream_processors.app import changelog_topics
from stream_processors.service import ProcessorHealth, ProcessorService, run
from stream_processors.settings import ProcessorSettings

__all__ = ["ProcessorHealth", "ProcessorService", "ProcessorSettings", "changelog_topics", "run"]
