"""The options of a harness: what a task file may say under `harness.options`, checked with the field's path in every error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harnesses.errors import HarnessError, OptionError
from harnesses.extensions import check_servers, check_skills

# The kinds of an option and what a reader calls them.
KINDS: dict[str, str] = {
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "strings": "a list of texts",
    "mapping": "a mapping of texts to texts",
    "command": "a shell command (a text) or an argument list (a list of texts)",
    "choice": "one of a few words",
    "servers": "MCP servers by name",
    "skills": "skills by name",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec:
    """One option that a definition declares: its kind, its default (None: absent), and whether it must be given."""

    name: str
    kind: str
    help: str = ""
    default: object = None
    required: bool = False
    minimum: int | None = None
    choices: tuple[str, ...] = ()


def parse_option(name: str, raw: object, where: str) -> OptionSpec:
    """An `OptionSpec` from its YAML form `{kind, help, default, required, minimum, choices}`."""
    if not isinstance(raw, Mapping):
        raise HarnessError(f"{where}.{name}: must be a mapping with a `kind`, one of {', '.join(KINDS)}")
    unknown = set(raw) - {"kind", "help", "default", "required", "minimum", "choices"}
    if unknown or raw.get("kind") not in KINDS:
        raise HarnessError(
            f"{where}.{name}: needs a `kind` of {', '.join(KINDS)} and knows no {sorted(map(str, unknown))}"
        )
    minimum, choices = raw.get("minimum"), raw.get("choices", [])
    if not isinstance(choices, list) or (raw["kind"] == "choice") != bool(choices):
        raise HarnessError(f"{where}.{name}.choices: a `choice` needs a list of words, and nothing else has one")
    return OptionSpec(
        name=name,
        kind=str(raw["kind"]),
        help=str(raw.get("help", "")),
        default=raw.get("default"),
        required=bool(raw.get("required", False)),
        minimum=minimum if isinstance(minimum, int) else None,
        choices=tuple(map(str, choices)),
    )


def validate_options(
    specs: Mapping[str, OptionSpec], given: Mapping[str, object], harness: str, path: str = "harness.options"
) -> dict[str, object]:
    """Every declared option with its given or default value (None where absent and without default).

    Raises:
        OptionError: an unknown option, a missing required one, or a value of the wrong kind; its text starts with the field's path.
    """
    for name in given:
        if name not in specs:
            known = ", ".join(sorted(specs)) or "none"
            raise OptionError(f"{path}.{name}", f"the harness `{harness}` has no such option; it knows: {known}")
    values: dict[str, object] = {}
    for name, spec in specs.items():
        value = given.get(name, spec.default)
        if value is None:
            if spec.required:
                hint = f" ({spec.help})" if spec.help else ""
                raise OptionError(
                    f"{path}.{name}", f"the harness `{harness}` needs this option, {KINDS[spec.kind]}{hint}"
                )
            values[name] = None
            continue
        values[name] = _checked(spec, value, f"{path}.{name}")
    return values


def _checked(spec: OptionSpec, value: object, path: str) -> object:
    if spec.kind in {"servers", "skills"}:
        return check_servers(value, path) if spec.kind == "servers" else check_skills(value, path)
    if not _ACCEPTS[spec.kind](value):
        raise OptionError(path, f"must be {KINDS[spec.kind]}, not {type(value).__name__} {value!r:.80}")
    if spec.kind == "choice" and value not in spec.choices:
        raise OptionError(path, f"must be one of {', '.join(spec.choices)}, not {value!r:.80}")
    if isinstance(value, int) and spec.minimum is not None and value < spec.minimum:
        raise OptionError(path, f"must be at least {spec.minimum}, not {value}")
    if spec.kind == "command" and (not value or (isinstance(value, str) and not value.strip())):
        raise OptionError(path, "is empty; write the command to run, for example `./agent.sh {instruction}`")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str) or not isinstance(item, str | int | float) or isinstance(item, bool):
                raise OptionError(f"{path}.{key}", f"must be a text (quote it), not {type(item).__name__}")
        return {key: str(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


# What each kind accepts; the rest of a value's rules stand in `_checked`.
_ACCEPTS: dict[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "strings": _is_texts,
    "mapping": lambda value: isinstance(value, Mapping),
    "command": lambda value: isinstance(value, str) or _is_texts(value),
    "choice": lambda value: isinstance(value, str),
}
