"""What a task may add to a harness: MCP servers and skills, checked, and brought into the harness' own form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from harnesses.errors import OptionError
from harnesses.templates import fill, fill_tree

# Harnesses build tool names from it, and vendors allow these characters in tool names.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STDIO = {"command", "args", "env"}
_HTTP = {"url", "headers"}


def check_servers(value: object, path: str) -> dict[str, dict[str, object]]:
    """MCP servers by name, each `{command, args, env}` or `{url, headers}`, with nothing left out.

    Raises:
        OptionError: a server is neither, or a field is of the wrong kind.
    """
    made: dict[str, dict[str, object]] = {}
    for name, raw in _named(value, path).items():
        place = f"{path}.{name}"
        if not isinstance(raw, Mapping) or ("command" in raw) == ("url" in raw):
            raise OptionError(place, "must be a mapping with either `command` (and args, env) or `url` (and headers)")
        known = _STDIO if "command" in raw else _HTTP
        if unknown := {str(key) for key in raw} - known:
            raise OptionError(f"{place}.{min(unknown)}", f"is no field of such a server; it knows: {', '.join(known)}")
        main = "command" if "command" in raw else "url"
        if not isinstance(raw[main], str) or not raw[main]:
            raise OptionError(f"{place}.{main}", "must be a text")
        if main == "command":
            args = raw.get("args", [])
            if not isinstance(args, list) or not all(isinstance(item, str) for item in args):
                raise OptionError(f"{place}.args", "must be a list of texts")
            made[name] = {"command": raw[main], "args": list(args), "env": _texts(raw.get("env", {}), f"{place}.env")}
        else:
            made[name] = {"url": raw[main], "headers": _texts(raw.get("headers", {}), f"{place}.headers")}
    return made


def check_skills(value: object, path: str) -> dict[str, dict[str, str]]:
    """Skills by name, each a mapping of relative paths to texts; a text alone is its SKILL.md.

    Raises:
        OptionError: a skill has no SKILL.md, a path leads out of it, or a field is of the wrong kind.
    """
    made: dict[str, dict[str, str]] = {}
    for name, raw in _named(value, path).items():
        files = {"SKILL.md": raw} if isinstance(raw, str) else _texts(raw, f"{path}.{name}")
        if "SKILL.md" not in files:
            raise OptionError(f"{path}.{name}", "needs a file SKILL.md, which says when the skill is of use")
        for file in files:
            relative = PurePosixPath(file)
            is_inside = relative.parts and not relative.is_absolute() and ".." not in relative.parts
            if not is_inside or str(relative) != file or "\0" in file:
                raise OptionError(f"{path}.{name}.{file}", "must be a relative path that stays inside the skill")
        made[name] = files
    return made


def server_trees(
    servers: Mapping[str, Mapping[str, object]], stdio: object, http: object, texts: Mapping[str, str], path: str
) -> dict[str, object]:
    """The servers in a harness' own form, of which `stdio` and `http` are the shapes; placeholders in their texts are filled.

    Raises:
        OptionError: the harness knows no servers behind a URL.
    """
    made: dict[str, object] = {}
    for name, server in servers.items():
        shape = stdio if "command" in server else http
        if shape is None:
            raise OptionError(f"{path}.{name}.url", "this harness takes only servers that are a command")
        made[name] = fill_tree(shape, {key: _filled(item, texts) for key, item in server.items()})
    return made


def skill_files(skills: Mapping[str, Mapping[str, str]], directory: str) -> dict[str, bytes]:
    """The files of skills under a harness' skill directory."""
    return {
        f"{directory}/{name}/{path}": text.encode() for name, files in skills.items() for path, text in files.items()
    }


def _filled(value: object, texts: Mapping[str, str]) -> object:
    if isinstance(value, Mapping):
        return {key: fill(str(item), texts) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(str(item), texts) for item in value]
    return fill(str(value), texts)


def _named(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise OptionError(path, f"must be a mapping by name, not {type(value).__name__}")
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise OptionError(f"{path}.{name}", "is no name: letters, digits, _ and -, at most 64")
    return dict(value)


def _texts(value: object, path: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise OptionError(path, "must be a mapping of texts to texts")
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise OptionError(f"{path}.{key}", f"must be a text (quote it), not {type(item).__name__}")
    return dict(value)
