"""From an adapter and a session's values to what is launched: argv, environment, files, standard input. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from harnesses.adapter import DIALECTS, Adapter
from harnesses.errors import HarnessError, OptionError
from harnesses.options import validate_options
from harnesses.templates import fill, fill_tree, names, shell_script, shell_variable

# Linux refuses a single argument or environment string of 128 KiB and more (MAX_ARG_STRLEN), with its final NUL byte.
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
COMMAND_PATH = "harness.options.command"
_COMMAND_PLACEHOLDERS = {
    "instruction",
    "model",
    "secret",
    "home",
    "workdir",
    *(f"base_url_{dialect}" for dialect in DIALECTS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What to run for one session.

    `files` maps absolute paths (in the runtime) to contents, to be written readable by the owner alone, since they may name the
    secret. `path_dirs` go in front of the runtime's own PATH. `stdin` None means an empty standard input.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    path_dirs: tuple[str, ...] = ()
    stdin: bytes | None = None


def base_urls(data_address: str, secret: str, form: str = "path") -> dict[str, str]:
    """The base URL per dialect, as the vendors' SDKs take it, at a proxy's data address (`http://host:port`).

    With `form="path"` the secret is a path segment; with `"key"` it travels as the API key alone.
    """
    root = data_address.rstrip("/")
    if form == "path":
        root = f"{root}/s/{secret}"
    return {"openai_chat": f"{root}/v1", "anthropic": root}


def check_command(command: object) -> None:
    """Refuses a shell command whose placeholders can't be quoted.

    Raises:
        HarnessError: the text starts with the field's path.
    """
    if isinstance(command, str):
        shell_script(command, _COMMAND_PLACEHOLDERS, COMMAND_PATH)


def launch_plan(
    adapter: Adapter,
    options: Mapping[str, object],
    *,
    instruction: str,
    urls: Mapping[str, str],
    secret: str,
    model: str,
    home: str,
    workdir: str,
    executable: str = "",
    path_dirs: tuple[str, ...] = (),
) -> LaunchPlan:
    """What to launch for one session.

    `urls` has the base URL per dialect (`base_urls`), `model` the name to ask for unless the options name another, `executable`
    and `path_dirs` come from the installation. Values are only ever data: argv elements, environment values, file contents.

    Raises:
        OptionError: the options don't fit the harness.
        HarnessError: a value is too long for the operating system, or a dialect has no URL.
    """
    values = validate_options(adapter.options, options, adapter.name)
    variables: dict[str, object] = {key: item for key, item in values.items() if key not in {"env", "cwd", "command"}}
    variables |= {
        "instruction": instruction,
        "secret": secret,
        "home": home,
        "workdir": workdir,
        "model": values.get("model") or model,
        "bin": executable,
    }
    for dialect in DIALECTS if adapter.dialect == "any" else (adapter.dialect,):
        if dialect not in urls:
            raise HarnessError(f"the harness `{adapter.name}` speaks {dialect}, but no base URL is known for it")
        variables[f"base_url_{dialect}"] = urls[dialect]
    texts = {key: _text(item) for key, item in variables.items() if item is not None}

    env = {key: fill(item, texts) for key, item in adapter.environment.items()}
    command = values.get("command")
    if command is None:
        argv = _argv(adapter, values, variables)
    elif isinstance(command, str):
        argv = ("/bin/sh", "-c", shell_script(command, _COMMAND_PLACEHOLDERS, COMMAND_PATH))
        env |= {shell_variable(name): texts[name] for name in names(command) & _COMMAND_PLACEHOLDERS}
    else:
        argv = tuple(fill(str(item), texts) for item in _items(command))
    extra = values.get("env")
    if isinstance(extra, Mapping):
        env |= {str(key): fill(str(item), texts) for key, item in extra.items()}
    _check_sizes(argv, env)
    return LaunchPlan(
        argv=argv,
        cwd=posixpath.normpath(posixpath.join(workdir, str(values.get("cwd") or ""))),
        env=env,
        files={fill(item.path, texts): _content(item.text, item.json, variables, texts) for item in adapter.files},
        path_dirs=path_dirs,
        stdin=None if adapter.stdin is None else fill(adapter.stdin, texts).encode(),
    )


def _argv(adapter: Adapter, values: Mapping[str, object], variables: Mapping[str, object]) -> tuple[str, ...]:
    argv: list[str] = []
    for argument in adapter.command:
        if argument.when is not None and not values.get(argument.when):
            continue
        for part in argument.parts:
            filled = fill_tree(part, variables)
            argv += [str(item) for item in filled] if isinstance(filled, list) else [_text(filled)]
    return tuple(argv)


def _content(text: str | None, tree: object, variables: Mapping[str, object], texts: Mapping[str, str]) -> bytes:
    if text is not None:
        return fill(text, texts).encode()
    return orjson.dumps(fill_tree(tree, variables), option=orjson.OPT_INDENT_2)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _items(command: object) -> list[object]:
    if not isinstance(command, list):
        raise OptionError(COMMAND_PATH, "must be a text or a list of texts")
    return command


def _check_sizes(argv: tuple[str, ...], env: Mapping[str, str]) -> None:
    for name, value in (*((f"argument {index}", item) for index, item in enumerate(argv)), *env.items()):
        size = len(value.encode("utf-8", "surrogateescape")) + len(name) + 1
        if size > MAX_ARGUMENT_BYTES:
            raise HarnessError(
                f"{name} has {size} bytes, more than the operating system's {MAX_ARGUMENT_BYTES} for one string; "
                "put the long part of the instruction into a file with an `upload` step of `prepare`"
            )
        if "\0" in value:
            raise HarnessError(f"{name} holds a NUL character, which no program can be given")
