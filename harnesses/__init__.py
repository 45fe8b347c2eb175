"""Agent harnesses as data: how each is installed, configured, launched and judged, with the harness itself unmodified.

In: a harness' name and options from a task, and the values of one session (instruction, base URLs, secret, model,
directories). Out: an installation in the cache, a `LaunchPlan` (argv, environment, files), and a `Verdict` over its exit code and
its own JSON events. Definitions are YAML files; the rest are pure functions, except `install`, which runs npm and uv.
"""

from __future__ import annotations

from harnesses.adapter import Adapter
from harnesses.catalogue import get, list_harnesses, validate
from harnesses.errors import HarnessError, InstallError, OptionError, UnknownHarnessError
from harnesses.forward import ForwardProxy
from harnesses.install import Installed, default_cache, ensure_installed, find_installed
from harnesses.plan import LaunchPlan, base_urls, launch_plan
from harnesses.verdict import Judge, Verdict

__all__ = [
    "Adapter",
    "ForwardProxy",
    "HarnessError",
    "InstallError",
    "Installed",
    "Judge",
    "LaunchPlan",
    "OptionError",
    "UnknownHarnessError",
    "Verdict",
    "base_urls",
    "default_cache",
    "ensure_installed",
    "find_installed",
    "get",
    "launch_plan",
    "list_harnesses",
    "validate",
]
