"""The declarative model of a harness: what is installed, which files it reads, how it is launched, how its end is judged.

An adapter is data. One YAML file describes one harness; `definition.py` turns it into these frozen values. Nothing here touches a
disk or a process: `install.py` and `plan.py` act on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harnesses.options import OptionSpec
from harnesses.verdict import VerdictRule

# The dialects that the capture proxy serves: the key under which a base URL is found, and the name of a wire.
DIALECTS = ("openai_chat", "anthropic", "openai_responses", "google")

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package of a registry at one exact version, and the executable `bin` that it brings.

    `node_min` (npm) and `python_min` (pypi) are the interpreter that it needs.
    """

    package: str
    version: str
    bin: str
    registry: Literal["npm", "pypi"] = "npm"
    node_min: Version | None = None
    python_min: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTemplate:
    """A file written before the launch: `path` starts with {home} or {workdir}; its content is `text`, or a tree as JSON or TOML."""

    path: str
    text: str | None = None
    json: object = None
    toml: object = None
    when: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One piece of the command line: `parts` are added when the variable `when` has a value (or always, when None)."""

    parts: tuple[str, ...]
    when: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """What a wire adds in one way of capture: the base URL for this client, variables for the templates, environment, files.

    An empty `base_url` leaves the client at its vendor's own address.
    """

    base_url: str = ""
    variables: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    files: tuple[FileTemplate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One dialect that a harness can speak: what is set for it with a base URL of ours, and with a forward proxy (None: it can't)."""

    dialect: str
    reverse: Addition
    forward: Addition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpShapes:
    """How a harness writes down an MCP server: a tree for a command and one for a URL (None: it can't)."""

    stdio: object = None
    http: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One agent harness, as data.

    `command` is empty for `shell`, whose command is an option. `dialect` names the wire that the harness speaks unless its option
    `wire` says otherwise (`any`: it is handed all of them). `url_form` says how the lease's secret travels: `path` (`/s/<secret>` in
    the base URL, the key too) or `key` (the API key alone).
    """

    name: str
    title: str
    version: str
    dialect: str
    url_form: str = "path"
    install: Package | None = None
    files: tuple[FileTemplate, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    command: tuple[Argument, ...] = ()
    stdin: str | None = None
    options: Mapping[str, OptionSpec] = field(default_factory=dict)
    verdict: VerdictRule | None = None
    wires: Mapping[str, Wire] = field(default_factory=dict)
    mcp: McpShapes | None = None
    skills_dir: str | None = None

    @property
    def dialects(self) -> tuple[str, ...]:
        """Every wire that it speaks, the default one first."""
        if self.dialect == "any":
            return DIALECTS
        return (self.dialect, *(name for name in self.wires if name != self.dialect))

    @property
    def wire_variables(self) -> frozenset[str]:
        """The variables that any of its wires sets for the templates."""
        return wire_variables(self.wires)

    @property
    def has_forward(self) -> bool:
        """Whether a wire of it can be captured by a forward proxy, with the vendor's own address."""
        return self.dialect == "any" or any(wire.forward is not None for wire in self.wires.values())


def wire_variables(wires: Mapping[str, Wire]) -> frozenset[str]:
    """The variables that any of these wires sets for the templates."""
    additions = [addition for wire in wires.values() for addition in (wire.reverse, wire.forward)]
    return frozenset(name for addition in additions if addition is not None for name in addition.variables)
