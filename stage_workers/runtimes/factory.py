"""The runtimes of one worker's incarnation: made by kind, marked as its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.task import RuntimeSpec
from stage_workers.runtimes.base import Limits, Runtime, RuntimeFault
from stage_workers.runtimes.local import LocalRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtimes:
    """Makes the runtimes of an incarnation (a RuntimeFactory).

    `root` is where their files live, `owner` the mark that they all bear, `grace_s` the time from SIGTERM to SIGKILL.
    """

    root: Path
    owner: str
    grace_s: float = 2.0
    isolates_local: bool = False
    """Whether `local` gets a network of its own for `network: model_only`; what it calls must then be listeners of the runtime."""

    kinds = ("local",)

    def __call__(self, spec: RuntimeSpec, name: str) -> Runtime:
        """A runtime as a task asks for it, not yet started. Raises RuntimeFault for a kind that isn't here."""
        if spec.kind != "local":
            raise RuntimeFault(
                f"this worker has no runtime `{spec.kind}`, only {', '.join(f'`{kind}`' for kind in self.kinds)}"
            )
        return LocalRuntime(
            self.root,
            name,
            owner=self.owner,
            limits=Limits.of(spec),
            grace_s=self.grace_s,
            isolate=self.isolates_local and spec.network == "model_only",
        )
