"""What containers and instances have in common: where things are inside, as the task's options say."""

from __future__ import annotations

import os
from typing import Protocol


class PlaceOptions(Protocol):
    """The options of a kind that say where things are."""

    @property
    def workdir(self) -> str:
        """Where programs run."""

    @property
    def home(self) -> str:
        """HOME of programs."""


class Sandbox:
    """A runtime whose files are seen from inside only."""

    is_trusted = False

    def __init__(self, places: PlaceOptions) -> None:
        self._places = places

    @property
    def workdir(self) -> str:
        """The working directory, as programs see it."""
        return self._places.workdir

    @property
    def home(self) -> str:
        """HOME, as programs see it."""
        return self._places.home

    def place(self, path: str | None = None) -> str:
        """A path inside: a relative one counts from the working directory, none is the working directory."""
        return os.path.join(self.workdir, path or self.workdir)  # noqa: PTH118  # no path of this machine
