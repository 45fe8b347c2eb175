"""What a running stack tells the commands beside it: `stack.json` and the parts' ready files in the state directory."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compose.settings import StackSettings


@dataclass(slots=True)
class StackInfo:
    """A stack's addresses and pids. `is_ready` turns true once every part answers."""

    supervisor_pid: int = 0
    bootstrap: str = ""
    topic_prefix: str = ""
    policy_id: str = ""
    engine_url: str = ""
    model_dir: str = ""
    proxy_address: str = ""
    proxy_admin_address: str = ""
    forward_address: str = ""
    api_url: str = ""
    pids: dict[str, int] = field(default_factory=dict)
    step: str = ""
    is_ready: bool = False
    error: str = ""

    def save(self, state_dir: Path) -> None:
        """Write it whole, so that no reader sees half of it."""
        path = info_file(state_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n")
        partial.replace(path)


def info_file(state_dir: Path) -> Path:
    """Where a stack's facts stand."""
    return state_dir / "stack.json"


def load_info(settings: StackSettings) -> StackInfo | None:
    """The facts of the stack that runs (or ran last) in this state directory; None when there was none."""
    try:
        data: dict[str, Any] = json.loads(info_file(settings.state_dir).read_text())
    except (OSError, ValueError):
        return None
    return StackInfo(**{k: v for k, v in data.items() if k in StackInfo.__dataclass_fields__})


def is_alive(pid: int) -> bool:
    """Whether a process with this pid runs (a zombie doesn't)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def running_info(settings: StackSettings) -> StackInfo | None:
    """The facts of the stack that runs now in this state directory; None when none does."""
    info = load_info(settings)
    return info if info is not None and info.supervisor_pid and is_alive(info.supervisor_pid) else None


def ready_file(state_dir: Path, part: str) -> Path:
    """Where a part says that it is ready."""
    return state_dir / "run" / f"{part}.json"


def log_file(state_dir: Path, part: str) -> Path:
    """Where a part's output goes."""
    return state_dir / "logs" / f"{part}.log"
