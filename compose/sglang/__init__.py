"""SGLang beside this project: an environment of its own, made on demand, and a server in it, with a GPU or without one.

SGLang's packages conflict with ours, so nothing here imports it; it is installed into the cache and run as a program.
"""

from __future__ import annotations

from compose.sglang.environment import SGLANG_VERSION, Device, EnvironmentFailedError, ensure_environment, find_device
from compose.sglang.server import SglangServer, server_command

__all__ = [
    "SGLANG_VERSION",
    "Device",
    "EnvironmentFailedError",
    "SglangServer",
    "ensure_environment",
    "find_device",
    "server_command",
]
