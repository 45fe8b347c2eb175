"""Reads a definition: from the tree of its YAML file to an `Adapter`; what is missing, unknown or wrong is refused with its place."""

from __future__ import annotations

from collections.abc import Mapping

from harnesses.adapter import (
    DIALECTS,
    Adapter,
    Addition,
    Argument,
    FileTemplate,
    McpShapes,
    Package,
    Version,
    Wire,
    wire_variables,
)
from harnesses.errors import HarnessError
from harnesses.options import OptionSpec, parse_option
from harnesses.placeholders import check_placeholders
from harnesses.verdict import parse_rule

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
    "wires",
    "mcp",
    "skills_dir",
}
_ADDITION = {"base_url", "set", "environment", "files"}
_REGISTRIES = ("npm", "pypi")
# Options that every harness has.
_COMMON = {
    "model": OptionSpec(name="model", kind="string", help="the model name to ask for; the policy's id by default"),
    "env": OptionSpec(
        name="env", kind="mapping", default={}, help="extra environment variables; values may use the placeholders"
    ),
    "cwd": OptionSpec(name="cwd", kind="string", help="where to run, relative to the session's working directory"),
}


def parse_adapter(raw: object, where: str) -> Adapter:
    """An adapter from its YAML tree; `where` names the file in errors.

    Raises:
        HarnessError: a field is missing, unknown or of the wrong kind, or nothing fills a placeholder.
    """
    tree = _mapping(raw, where, _FIELDS)
    for needed in ("name", "title", "dialect"):
        if not isinstance(tree.get(needed), str):
            raise HarnessError(f"{where}.{needed}: is needed, a text")
    dialect, url_form = str(tree["dialect"]), str(tree.get("url_form", "path"))
    if dialect not in (*DIALECTS, "any"):
        raise HarnessError(f"{where}.dialect: {dialect!r} is none of {', '.join(DIALECTS)}, any")
    if url_form not in {"path", "key"}:
        raise HarnessError(f"{where}.url_form: {url_form!r} is neither path nor key")
    install = _install(tree.get("install"), f"{where}.install")
    wires = _wires(tree.get("wires"), dialect, f"{where}.wires")
    mcp = _mcp(tree.get("mcp"), f"{where}.mcp")
    skills_dir = None if tree.get("skills_dir") is None else str(tree["skills_dir"])
    options = {
        name: parse_option(name, item, f"{where}.options")
        for name, item in _mapping(tree.get("options", {}), f"{where}.options").items()
    }
    options = _COMMON | options | _capabilities(dialect, wires, mcp, skills_dir)
    settable = {*options, *wire_variables(wires)}
    verdict = tree.get("verdict")
    adapter = Adapter(
        name=str(tree["name"]),
        title=str(tree["title"]),
        version=install.version if install else str(tree.get("version", "1")),
        dialect=dialect,
        url_form=url_form,
        install=install,
        files=_files(tree.get("files"), f"{where}.files", settable),
        environment=_texts(tree.get("environment"), f"{where}.environment"),
        command=tuple(
            _argument(item, f"{where}.command[{index}]", settable)
            for index, item in enumerate(_list(tree.get("command", []), f"{where}.command"))
        ),
        stdin=None if tree.get("stdin") is None else str(tree["stdin"]),
        options=options,
        verdict=None if verdict is None else parse_rule(_mapping(verdict, f"{where}.verdict"), f"{where}.verdict"),
        wires=wires,
        mcp=mcp,
        skills_dir=skills_dir,
    )
    check_placeholders(adapter, where)
    return adapter


def _capabilities(
    dialect: str, wires: Mapping[str, Wire], mcp: McpShapes | None, skills_dir: str | None
) -> dict[str, OptionSpec]:
    """The options that follow from what a harness can do."""
    made: dict[str, OptionSpec] = {}
    if len(wires) > 1:
        made["wire"] = OptionSpec(
            name="wire", kind="choice", default=dialect, choices=tuple(wires), help="the API that it speaks"
        )
    if dialect == "any" or any(wire.forward is not None for wire in wires.values()):
        made["capture"] = OptionSpec(
            name="capture",
            kind="choice",
            default="reverse",
            choices=("reverse", "forward"),
            help="reverse: a base URL of ours; forward: the vendor's own address, through a forward proxy",
        )
    if mcp is not None:
        made["mcp_servers"] = OptionSpec(
            name="mcp_servers",
            kind="servers",
            help="MCP servers by name: {command, args, env}" + (" or {url, headers}" if mcp.http is not None else ""),
        )
    if skills_dir is not None:
        made["skills"] = OptionSpec(
            name="skills", kind="skills", help="skills by name: the text of SKILL.md, or texts by relative path"
        )
    return made


def _wires(raw: object, dialect: str, where: str) -> dict[str, Wire]:
    if dialect == "any":
        return {}
    made: dict[str, Wire] = {}
    for name, item in _mapping({dialect: {}} if raw is None else raw, where).items():
        if name not in DIALECTS:
            raise HarnessError(f"{where}.{name}: is none of {', '.join(DIALECTS)}")
        tree = _mapping(item or {}, f"{where}.{name}", _ADDITION | {"forward"})
        forward = tree.pop("forward", None)
        made[name] = Wire(
            dialect=name,
            reverse=_addition({"base_url": f"{{base_url_{name}}}", **tree}, f"{where}.{name}"),
            forward=None
            if forward is None
            else _addition(_mapping(forward, f"{where}.{name}.forward", _ADDITION), f"{where}.{name}.forward"),
        )
    if dialect not in made:
        raise HarnessError(f"{where}: lacks {dialect}, which `dialect` names as the default")
    return made


def _addition(tree: Mapping[str, object], where: str) -> Addition:
    return Addition(
        base_url=str(tree.get("base_url") or ""),
        variables=_mapping(tree.get("set") or {}, f"{where}.set"),
        environment=_texts(tree.get("environment"), f"{where}.environment"),
        files=_files(tree.get("files"), f"{where}.files", set()),
    )


def _mcp(raw: object, where: str) -> McpShapes | None:
    if raw is None:
        return None
    tree = _mapping(raw, where, {"stdio", "http"})
    if tree.get("stdio") is None:
        raise HarnessError(f"{where}.stdio: is needed, the shape of a server that is a command")
    return McpShapes(stdio=tree["stdio"], http=tree.get("http"))


def _install(raw: object, where: str) -> Package | None:
    if raw is None:
        return None
    tree = _mapping(raw, where, {"package", "version", "bin", "registry", "node_min", "python_min"})
    missing = {"package", "version", "bin"} - set(tree)
    if missing:
        raise HarnessError(f"{where}: lacks {sorted(missing)}")
    registry = tree.get("registry", "npm")
    if registry not in _REGISTRIES:
        raise HarnessError(f"{where}.registry: {registry!r} is none of {', '.join(_REGISTRIES)}")
    node, python = tree.get("node_min"), tree.get("python_min")
    return Package(
        package=str(tree["package"]),
        version=str(tree["version"]),
        bin=str(tree["bin"]),
        registry="pypi" if registry == "pypi" else "npm",
        node_min=None if node is None else parse_version(str(node)),
        python_min=None if python is None else parse_version(str(python)),
    )


def parse_version(text: str) -> Version:
    """`v22.19.0` or `22` as three numbers."""
    parts = text.strip().removeprefix("v").split("-")[0].split(".")
    try:
        numbers = [int(part) for part in parts[:3]]
    except ValueError as error:
        raise HarnessError(f"{text!r} is not a version like 22.19.0") from error
    major, minor, patch = (*numbers, 0, 0)[:3]
    return major, minor, patch


def _files(raw: object, where: str, settable: set[str]) -> tuple[FileTemplate, ...]:
    return tuple(_file(item, f"{where}[{index}]", settable) for index, item in enumerate(_list(raw or [], where)))


def _file(raw: object, where: str, settable: set[str]) -> FileTemplate:
    tree = _mapping(raw, where, {"path", "text", "json", "toml", "when"})
    path, when = str(tree.get("path", "")), tree.get("when")
    if not path.startswith(("{home}/", "{workdir}/")):
        raise HarnessError(f"{where}.path: must start with {{home}}/ or {{workdir}}/, not {path!r}")
    if len({"text", "json", "toml"} & set(tree)) != 1:
        raise HarnessError(f"{where}: needs exactly one of text, json and toml")
    if when is not None and str(when) not in settable:
        raise HarnessError(f"{where}.when: {when!r} is none of the declared options")
    return FileTemplate(
        path=path,
        text=None if "text" not in tree else str(tree["text"]),
        json=tree.get("json"),
        toml=tree.get("toml"),
        when=None if when is None else str(when),
    )


def _argument(raw: object, where: str, settable: set[str]) -> Argument:
    if isinstance(raw, str):
        return Argument(parts=(raw,))
    tree = _mapping(raw, where, {"when", "parts"})
    when = tree.get("when")
    if str(when) not in settable:
        raise HarnessError(f"{where}.when: {when!r} is none of the declared options")
    return Argument(parts=tuple(str(item) for item in _list(tree.get("parts"), f"{where}.parts")), when=str(when))


def _texts(raw: object, where: str) -> dict[str, str]:
    return {key: str(value) for key, value in _mapping(raw or {}, where).items()}


def _mapping(raw: object, where: str, known: set[str] | None = None) -> dict[str, object]:
    if not isinstance(raw, Mapping):
        raise HarnessError(f"{where}: must be a mapping")
    tree = {str(key): value for key, value in raw.items()}
    if known is not None and (unknown := set(tree) - known):
        raise HarnessError(f"{where}: unknown fields {sorted(unknown)}; known are {sorted(known)}")
    return tree


def _list(raw: object, where: str) -> list[object]:
    if not isinstance(raw, list):
        raise HarnessError(f"{where}: must be a list")
    return raw
