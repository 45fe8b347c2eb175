"""Runtimes: where a session's programs run. `local` is a directory and a process group, for trusted programs."""

from __future__ import annotations

from stage_workers.runtimes.base import ExecResult, Limits, Listener, Runtime, RuntimeFactory, RuntimeFault
from stage_workers.runtimes.local import LocalRuntime

__all__ = ["ExecResult", "Limits", "Listener", "LocalRuntime", "Runtime", "RuntimeFactory", "RuntimeFault"]
