"""The declarative model of a harness: what is installed, which files it reads, how it is launched, how its end is judged.

An adapter is data. One YAML file under `definitions/` describes one harness; `parse_adapter` turns it into these frozen values and
refuses what it doesn't know. Nothing here touches a disk or a process: `install.py` and `plan.py` act on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harnesses.errors import HarnessError
from harnesses.options import OptionSpec, parse_option
from harnesses.verdict import VerdictRule, parse_rule

# The dialects that the capture proxy serves: the key under which a base URL is found.
DIALECTS = ("openai_chat", "anthropic")


@dataclass(frozen=True, slots=True, kw_only=True)
class NpmInstall:
    """One npm package at one exact version; `node_min` is what its `engines` ask for, `bin` the executable it brings."""

    package: str
    version: str
    bin: str
    node_min: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTemplate:
    """A file written before the launch: `path` starts with {home} or {workdir}; `text` or `json` (a tree) is its content."""

    path: str
    text: str | None = None
    json: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One piece of the command line: `parts` are added when the option `when` is set (or always, when None)."""

    parts: tuple[str, ...]
    when: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One agent harness, as data.

    `command` is empty for `shell`, whose command is an option. `dialect` names the wire that the harness speaks (`any`: it is handed
    all of them). `url_form` says how the lease's secret travels: `path` (`/s/<secret>` in the base URL, the key too) or `key`
    (the API key alone).
    """

    name: str
    title: str
    version: str
    dialect: str
    url_form: str = "path"
    install: NpmInstall | None = None
    files: tuple[FileTemplate, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    command: tuple[Argument, ...] = ()
    stdin: str | None = None
    options: Mapping[str, OptionSpec] = field(default_factory=dict)
    verdict: VerdictRule | None = None


_FIELDS = {
    "name",
    "title",
    "version",
    "dialect",
    "url_form",
    "install",
    "files",
    "environment",
    "command",
    "stdin",
    "options",
    "verdict",
}


def parse_adapter(raw: object, where: str) -> Adapter:
    """An adapter from its YAML tree; `where` names the file in errors.

    Raises:
        HarnessError: a field is missing, unknown or of the wrong kind.
    """
    tree = _mapping(raw, where)
    unknown = set(tree) - _FIELDS
    if unknown:
        raise HarnessError(f"{where}: unknown fields {sorted(unknown)}; known are {sorted(_FIELDS)}")
    for needed in ("name", "title", "dialect"):
        if not isinstance(tree.get(needed), str):
            raise HarnessError(f"{where}.{needed}: is needed, a text")
    dialect, url_form = str(tree["dialect"]), str(tree.get("url_form", "path"))
    if dialect not in (*DIALECTS, "any"):
        raise HarnessError(f"{where}.dialect: {dialect!r} is none of {', '.join(DIALECTS)}, any")
    if url_form not in {"path", "key"}:
        raise HarnessError(f"{where}.url_form: {url_form!r} is neither path nor key")
    install = _install(tree.get("install"), f"{where}.install")
    options = {
        name: parse_option(name, item, f"{where}.options")
        for name, item in _mapping(tree.get("options", {}), f"{where}.options").items()
    }
    verdict = tree.get("verdict")
    return Adapter(
        name=str(tree["name"]),
        title=str(tree["title"]),
        version=install.version if install else str(tree.get("version", "1")),
        dialect=dialect,
        url_form=url_form,
        install=install,
        files=tuple(
            _file(item, f"{where}.files[{index}]")
            for index, item in enumerate(_list(tree.get("files", []), f"{where}.files"))
        ),
        environment={
            key: str(value) for key, value in _mapping(tree.get("environment", {}), f"{where}.environment").items()
        },
        command=tuple(
            _argument(item, f"{where}.command[{index}]", options)
            for index, item in enumerate(_list(tree.get("command", []), f"{where}.command"))
        ),
        stdin=None if tree.get("stdin") is None else str(tree["stdin"]),
        options=options,
        verdict=None if verdict is None else parse_rule(_mapping(verdict, f"{where}.verdict"), f"{where}.verdict"),
    )


def _install(raw: object, where: str) -> NpmInstall | None:
    if raw is None:
        return None
    tree = _mapping(raw, where)
    missing = {"package", "version", "bin"} - set(tree)
    if missing:
        raise HarnessError(f"{where}: lacks {sorted(missing)}")
    node = tree.get("node_min")
    return NpmInstall(
        package=str(tree["package"]),
        version=str(tree["version"]),
        bin=str(tree["bin"]),
        node_min=None if node is None else parse_version(str(node)),
    )


def parse_version(text: str) -> tuple[int, int, int]:
    """`v22.19.0` or `22` as three numbers."""
    parts = text.strip().removeprefix("v").split("-")[0].split(".")
    try:
        numbers = [int(part) for part in parts[:3]]
    except ValueError as error:
        raise HarnessError(f"{text!r} is not a version like 22.19.0") from error
    major, minor, patch = (*numbers, 0, 0)[:3]
    return major, minor, patch


def _file(raw: object, where: str) -> FileTemplate:
    tree = _mapping(raw, where)
    path = str(tree.get("path", ""))
    if not path.startswith(("{home}/", "{workdir}/")):
        raise HarnessError(f"{where}.path: must start with {{home}}/ or {{workdir}}/, not {path!r}")
    if ("text" in tree) == ("json" in tree):
        raise HarnessError(f"{where}: needs exactly one of text and json")
    return FileTemplate(path=path, text=None if "text" not in tree else str(tree["text"]), json=tree.get("json"))


def _argument(raw: object, where: str, options: Mapping[str, OptionSpec]) -> Argument:
    if isinstance(raw, str):
        return Argument(parts=(raw,))
    tree = _mapping(raw, where)
    when = tree.get("when")
    if when not in options:
        raise HarnessError(f"{where}.when: {when!r} is none of the declared options")
    return Argument(parts=tuple(str(item) for item in _list(tree.get("parts"), f"{where}.parts")), when=str(when))


def _mapping(raw: object, where: str) -> dict[str, object]:
    if not isinstance(raw, Mapping):
        raise HarnessError(f"{where}: must be a mapping")
    return {str(key): value for key, value in raw.items()}


def _list(raw: object, where: str) -> list[object]:
    if not isinstance(raw, list):
        raise HarnessError(f"{where}: must be a list")
    return raw
