"""Did the harness succeed? Exit codes lie (one exits 0 after its last model call failed), so its own JSON events have a say.

A rule is data: which line of standard output is the deciding one (the last that matches), which of its values mean failure, and
where the error text stands. `Judge` is fed line by line while the harness runs, so that bounded logs don't blind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from harnesses.errors import HarnessError


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRule:
    """The last line whose fields have one of the values in `event` decides; it means failure when one in `fails_when` has.

    Fields are dotted paths into the JSON object. `required`: a run without such a line failed, whatever its exit code says.
    """

    event: Mapping[str, tuple[object, ...]]
    fails_when: Mapping[str, tuple[object, ...]]
    error: str
    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a run: `succeeded`, or an error in the harness' own words."""

    succeeded: bool
    error: str = ""


def parse_rule(tree: Mapping[str, object], where: str) -> VerdictRule:
    """A rule from its YAML form `{event, fails_when, error, required}`."""
    event, fails = tree.get("event"), tree.get("fails_when")
    if not isinstance(event, Mapping) or not event or not isinstance(fails, Mapping):
        raise HarnessError(f"{where}: needs the mappings event and fails_when")
    return VerdictRule(
        event=_values(event),
        fails_when=_values(fails),
        error=str(tree.get("error", "")),
        required=bool(tree.get("required", True)),
    )


def _values(tree: Mapping[object, object]) -> dict[str, tuple[object, ...]]:
    return {str(key): tuple(value) if isinstance(value, list) else (value,) for key, value in tree.items()}


def lookup(tree: object, path: str) -> object:
    """The value at a dotted path in a JSON tree, or None."""
    for part in path.split("."):
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(part)
    return tree


@dataclass(slots=True)
class Judge:
    """Takes the lines of standard output as they come and gives the verdict at the end."""

    rule: VerdictRule | None
    deciding: Mapping[str, object] | None = field(default=None, init=False)

    def feed(self, line: bytes) -> None:
        """One line of standard output, without limits on its length; lines that are not JSON objects don't matter."""
        if self.rule is None or not line.startswith(b"{"):
            return
        # Cheap test first: event lines can be long and many, and only few of them can decide.
        wanted = self.rule.event.get("type", ())
        if wanted and not any(str(value).encode() in line for value in wanted):
            return
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            return
        if all(lookup(event, path) in values for path, values in self.rule.event.items()):
            self.deciding = event

    def verdict(self, exit_code: int) -> Verdict:
        """The outcome, from the deciding event and the exit code: both must be good."""
        if self.rule is not None:
            if self.deciding is None:
                if self.rule.required and exit_code == 0:
                    return Verdict(succeeded=False, error="it exited with 0 but reported no outcome")
            else:
                for path, values in self.rule.fails_when.items():
                    found = lookup(self.deciding, path)
                    if found in values:
                        text = lookup(self.deciding, self.rule.error) if self.rule.error else None
                        return Verdict(succeeded=False, error=str(text or f"{path} is {found}"))
        if exit_code != 0:
            return Verdict(succeeded=False, error=f"it exited with {exit_code}")
        return Verdict(succeeded=True)
