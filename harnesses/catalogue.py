"""The catalogue: the harness definitions that are packaged with us, loaded once and looked up by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources

import yaml

from harnesses.adapter import Adapter, parse_adapter
from harnesses.errors import HarnessError, OptionError, UnknownHarnessError
from harnesses.options import validate_options

# npm takes ranges and tags too, and would then choose by itself: only exact versions are let through.
_EXACT_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")


@cache
def load_all() -> Mapping[str, Adapter]:
    """Every packaged definition by name.

    Raises:
        HarnessError: a definition is malformed or its name isn't its file's.
    """
    adapters: dict[str, Adapter] = {}
    for entry in sorted(resources.files("harnesses").joinpath("definitions").iterdir(), key=lambda item: item.name):
        if not entry.name.endswith(".yaml"):
            continue
        adapter = parse_adapter(yaml.safe_load(entry.read_text("utf-8")), f"definitions/{entry.name}")
        if f"{adapter.name}.yaml" != entry.name:
            raise HarnessError(f"definitions/{entry.name}: its name is {adapter.name!r}; name the file after it")
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
