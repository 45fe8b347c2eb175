"""The catalogue: the harness definitions that are packaged with us, and those of a directory of one's own, looked up by name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from harnesses.adapter import Adapter
from harnesses.definition import parse_adapter
from harnesses.errors import HarnessError, OptionError, UnknownHarnessError
from harnesses.options import validate_options

# npm takes ranges and tags too, and would then choose by itself: only exact versions are let through.
_EXACT_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")


DIRECTORY_VARIABLE = "POLYNYA_HARNESS_DIR"


def load_all() -> Mapping[str, Adapter]:
    """Every definition by name: the packaged ones, then those in `$POLYNYA_HARNESS_DIR`, which win where the names are equal.

    Raises:
        HarnessError: a definition is malformed, its name isn't its file's, or the directory isn't there.
    """
    packaged = _packaged()
    own = os.environ.get(DIRECTORY_VARIABLE)
    if not own:
        return packaged
    directory = Path(own).expanduser()
    if not directory.is_dir():
        raise HarnessError(f"{DIRECTORY_VARIABLE} is {own!r}, which is no directory; make it, or unset the variable")
    return dict(sorted({**packaged, **_own(directory, _stamp(directory))}.items()))


def _stamp(directory: Path) -> tuple[tuple[str, int, int], ...]:
    """What changes with the definitions of a directory: they are asked for twice for each session."""
    try:
        found = [(entry.name, entry.stat()) for entry in directory.iterdir() if entry.name.endswith(".yaml")]
    except OSError as error:
        raise HarnessError(f"{directory}: can't be read: {error.strerror}") from error
    return tuple(sorted((name, stat.st_mtime_ns, stat.st_size) for name, stat in found))


@lru_cache(maxsize=4)
def _own(directory: Path, stamp: tuple[tuple[str, int, int], ...]) -> Mapping[str, Adapter]:
    del stamp
    return _load(directory, str(directory))


@cache
def _packaged() -> Mapping[str, Adapter]:
    return _load(resources.files("harnesses").joinpath("definitions"), "definitions")


def _load(directory: Traversable, where: str) -> Mapping[str, Adapter]:
    adapters: dict[str, Adapter] = {}
    for entry in sorted(directory.iterdir(), key=lambda item: item.name):
        if not entry.name.endswith(".yaml"):
            continue
        try:
            tree = yaml.safe_load(entry.read_text("utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise HarnessError(f"{where}/{entry.name}: is no YAML: {error}") from error
        except OSError as error:
            raise HarnessError(f"{where}/{entry.name}: can't be read: {error.strerror}") from error
        adapter = parse_adapter(tree, f"{where}/{entry.name}")
        if f"{adapter.name}.yaml" != entry.name:
            raise HarnessError(f"{where}/{entry.name}: its name is {adapter.name!r}; name the file after it")
        adapters[adapter.name] = adapter
    return adapters


def list_harnesses() -> list[Adapter]:
    """Every harness, sorted by name."""
    return list(load_all().values())


def get(name: str, version: str | None = None) -> Adapter:
    """The adapter of a harness; with `version` that exact version instead of the pinned one.

    Raises:
        UnknownHarnessError: no definition has this name.
        OptionError: `version` isn't exact, or the harness installs nothing that could have one.
    """
    adapters = load_all()
    if name not in adapters:
        raise UnknownHarnessError(
            f"harness.name: there is no harness `{name}`; known are {', '.join(sorted(adapters))}"
        )
    adapter = adapters[name]
    if not version or version == adapter.version:
        return adapter
    if adapter.install is None:
        raise OptionError(
            "harness.version", f"the harness `{name}` installs nothing, so it has no version; leave it out"
        )
    if not _EXACT_VERSION.fullmatch(version):
        raise OptionError("harness.version", f"must be exact, like {adapter.version}, not {version!r}")
    return replace(adapter, version=version, install=replace(adapter.install, version=version))


def validate(name: str, options: Mapping[str, object], version: str | None = None) -> dict[str, object]:
    """The checked options (defaults filled in) of a task's harness: what a task file's reader calls before it submits.

    Raises:
        HarnessError: the name, the version or an option is wrong; the text starts with the field's path.
    """
    adapter = get(name, version)
    values = validate_options(adapter.options, options, name)
    if name == "shell":
        # The script's quoting is known now; better here than when a worker launches it.
        from harnesses.plan import check_command

        check_command(values["command"])
    return values
