"""Adapters import neither their trainers nor anything heavy until something is asked of them."""

from __future__ import annotations

import subprocess
import sys

ADAPTERS = ["blocking", "nemo_gym", "nemo_gym_agent", "prime_rl", "skyrl", "slime", "torch_tensors", "trl", "verl"]
HEAVY = ("torch", "transformers", "httpx", "fastapi", "pyarrow", "trl", "datasets")


def test_importing_every_adapter_is_light() -> None:
    """A trainer's environment is crowded: what its adapter doesn't need isn't there."""
    code = f"import importlib, sys; [importlib.import_module('trainer_sink.adapters.' + n) for n in {ADAPTERS}]; "
    code += f"print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
