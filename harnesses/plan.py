"""From an adapter and a session's values to what is launched: argv, environment, files, standard input. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from harnesses.adapter import DIALECTS, Adapter, Addition, FileTemplate
from harnesses.errors import HarnessError, OptionError
from harnesses.extensions import server_trees, skill_files
from harnesses.forward import NO_KEY, ForwardProxy
from harnesses.options import validate_options
from harnesses.placeholders import NOT_VARIABLES
from harnesses.templates import fill, fill_tree, names, shell_script, shell_variable, whole_name
from harnesses.toml import toml_text

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
    return {"openai_chat": f"{root}/v1", "anthropic": root, "openai_responses": f"{root}/v1", "google": root}


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
    forward: ForwardProxy | None = None,
) -> LaunchPlan:
    """What to launch for one session.

    `urls` has the base URL per dialect (`base_urls`), `model` the name to ask for unless the options name another, `executable`
    and `path_dirs` come from the installation, `forward` is used where the options ask for `capture: forward`. Values are only ever
    data: argv elements, environment values, file contents.

    Raises:
        OptionError: the options don't fit the harness.
        HarnessError: a value is too long for the operating system, a dialect has no URL, or there is no forward proxy.
    """
    values = validate_options(adapter.options, options, adapter.name)
    addition, proxy = _addition(adapter, values, forward)
    variables: dict[str, object] = {key: item for key, item in values.items() if key not in NOT_VARIABLES}
    variables |= {
        "instruction": instruction,
        # At a vendor's own address the key would leave us if anything went past the proxy: there it is none.
        "secret": secret if proxy is None else NO_KEY,
        "home": home,
        "workdir": workdir,
        "model": values.get("model") or model,
        "bin": executable,
    }
    for dialect in _needed_urls(adapter, values, proxy):
        if dialect not in urls:
            raise HarnessError(f"the harness `{adapter.name}` speaks {dialect}, but no base URL is known for it")
        variables[f"base_url_{dialect}"] = urls[dialect]
    variables |= {f"base_url_{dialect}": None for dialect in DIALECTS if f"base_url_{dialect}" not in variables}
    # What only another wire, or the other way of capture, sets has no value here.
    variables |= dict.fromkeys(adapter.wire_variables - variables.keys())
    variables["base_url"] = fill(addition.base_url, _texts(variables)) or None
    for key, item in addition.variables.items():
        variables[key] = fill_tree(item, variables)
    texts = _texts(variables)
    variables["mcp_servers"] = _servers(adapter, values, texts)

    env = _environment({**adapter.environment, **addition.environment}, variables, texts)
    if proxy is not None:
        env |= proxy.environment(secret, home)
    command = values.get("command")
    if command is None:
        argv = _argv(adapter, variables)
    elif isinstance(command, str):
        argv = ("/bin/sh", "-c", shell_script(command, _COMMAND_PLACEHOLDERS, COMMAND_PATH))
        env |= {shell_variable(name): texts.get(name, "") for name in names(command) & _COMMAND_PLACEHOLDERS}
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
        files=_files(adapter, addition, variables, texts) | ({} if proxy is None else proxy.files(home)),
        path_dirs=path_dirs,
        stdin=None if adapter.stdin is None else fill(adapter.stdin, texts).encode(),
    )


def _addition(
    adapter: Adapter, values: Mapping[str, object], forward: ForwardProxy | None
) -> tuple[Addition, ForwardProxy | None]:
    """What the chosen wire adds, and the forward proxy where the session goes through one."""
    wire = None if adapter.dialect == "any" else adapter.wires[str(values.get("wire") or adapter.dialect)]
    if values.get("capture") != "forward":
        return (Addition() if wire is None else wire.reverse), None
    addition = Addition() if wire is None else wire.forward
    if addition is None:
        assert wire is not None
        raise OptionError("harness.options.capture", f"`{adapter.name}` has no forward mode on the wire {wire.dialect}")
    if forward is None:
        raise HarnessError(
            f"the harness `{adapter.name}` is to run with capture: forward, but the proxy has no forward listener"
        )
    return addition, forward


def _needed_urls(adapter: Adapter, values: Mapping[str, object], proxy: ForwardProxy | None) -> tuple[str, ...]:
    if proxy is not None:
        return ()
    return DIALECTS if adapter.dialect == "any" else (str(values.get("wire") or adapter.dialect),)


def _servers(adapter: Adapter, values: Mapping[str, object], texts: Mapping[str, str]) -> dict[str, object] | None:
    servers = values.get("mcp_servers")
    if adapter.mcp is None or not isinstance(servers, Mapping) or not servers:
        return None
    return server_trees(servers, adapter.mcp.stdio, adapter.mcp.http, texts, "harness.options.mcp_servers")


def _environment(
    templates: Mapping[str, str], variables: Mapping[str, object], texts: Mapping[str, str]
) -> dict[str, str]:
    """The variables that have a value; what is one placeholder without a value isn't set at all."""
    return {
        key: fill(item, texts)
        for key, item in templates.items()
        if not ((name := whole_name(item)) in variables and variables[name] is None)
    }


def _files(
    adapter: Adapter, addition: Addition, variables: Mapping[str, object], texts: Mapping[str, str]
) -> dict[str, bytes]:
    made = {
        fill(item.path, texts): _content(item, variables, texts)
        for item in (*adapter.files, *addition.files)
        if item.when is None or variables.get(item.when)
    }
    skills = variables.get("skills")
    if adapter.skills_dir is not None and isinstance(skills, Mapping):
        made |= skill_files(skills, fill(adapter.skills_dir, texts))
    return made


def _argv(adapter: Adapter, variables: Mapping[str, object]) -> tuple[str, ...]:
    argv: list[str] = []
    for argument in adapter.command:
        if argument.when is not None and not variables.get(argument.when):
            continue
        for part in argument.parts:
            filled = fill_tree(part, variables)
            argv += [str(item) for item in filled] if isinstance(filled, list) else [_text(filled)]
    return tuple(argv)


def _content(item: FileTemplate, variables: Mapping[str, object], texts: Mapping[str, str]) -> bytes:
    if item.text is not None:
        return fill(item.text, texts).encode()
    if item.toml is not None:
        return toml_text(fill_tree(item.toml, variables)).encode()
    return orjson.dumps(fill_tree(item.json, variables), option=orjson.OPT_INDENT_2)


def _texts(variables: Mapping[str, object]) -> dict[str, str]:
    return {key: _text(item) for key, item in variables.items() if item is not None}


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
