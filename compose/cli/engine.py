"""`polynya engine`: serve a model with SGLang, and say which engines serve which policy."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from compose.cli.connect import call_admin, open_bus
from compose.cli.console import async_command, err, out, print_json
from compose.engines import add_engine, engine_states, live_proxies, registered_engines, remove_engine
from compose.errors import CommandError, ExitCode, dependency_down, usage
from compose.settings import load

app = typer.Typer(help="Inference engines: serve one, add, remove, list.", no_args_is_help=True)

POLICY = typer.Option("--policy", help="the policy that it serves ('*': any that has no engine of its own)")
_EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}


def _say(line: str) -> None:
    err.print(line, markup=False)


@app.command("sglang", context_settings=_EXTRA)
@async_command
async def sglang(
    context: typer.Context,
    *,
    model: Annotated[Path, typer.Option(help="a Hugging Face model directory")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one")] = 0,
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    policy: Annotated[str, POLICY] = "",
    install_only: Annotated[bool, typer.Option("--install-only", help="make the environment and stop")] = False,
) -> None:
    """Serve a model with SGLang in an environment of its own. Options after `--` go to SGLang itself.

    With --policy the engine is added to that policy while it runs.
    """
    from compose.sglang import EnvironmentFailedError, SglangServer, ensure_environment, find_device
    from compose.sglang.server import ServerFailedError

    if device not in ("auto", "cpu", "cuda"):
        raise usage(f"device {device!r} is none of auto, cpu, cuda", hint="polynya engine sglang --device cpu …")
    if not install_only and not (model / "config.json").is_file():
        raise usage(
            f"{model} is no model directory: it has no config.json", hint="polynya engine sglang --model DIRECTORY"
        )
    chosen = find_device() if device == "auto" else ("cpu" if device == "cpu" else "cuda")
    try:
        python = await asyncio.to_thread(ensure_environment, chosen, _say)
    except EnvironmentFailedError as error:
        raise dependency_down(str(error)) from error
    if install_only:
        out.print(str(python), markup=False)
        return
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = SglangServer(
        python, model=model.absolute(), device=chosen, host=host, port=port, extra=context.args, report=_say
    )
    try:
        async with AsyncExitStack() as stack:
            await _unless(stop, stack.enter_async_context(server))
            if stop.is_set():
                return
            if policy:
                await _register(stack, policy, server.url, str(model))
            out.print(f"engine ready {server.url} model={model} device={chosen}", markup=False)
            ended = asyncio.create_task(server.wait())
            await _unless(stop, ended)
            if not stop.is_set():
                raise CommandError(f"SGLang ended by itself ({ended.result()})", hint="its output is above")
    except ServerFailedError as error:
        raise CommandError(str(error), hint="its output is above") from error


async def _unless(stop: asyncio.Event, work: object) -> None:
    """Waits for work, or for the signal to stop; work that is overtaken is cancelled, what it raises is raised."""
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if task.done():
        task.result()
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _register(stack: AsyncExitStack, policy: str, url: str, model: str) -> None:
    bus = await stack.enter_async_context(open_bus(load()))
    await add_engine(bus, policy_id=policy, url=url, kind="sglang", model=model, added_by="polynya engine")
    stack.push_async_callback(remove_engine, bus, policy_id=policy, url=url, reason="polynya engine ended")


@app.command("add")
@async_command
async def add(
    url: Annotated[str, typer.Argument(help="the engine's base URL")],
    *,
    kind: Annotated[str, typer.Option(help="sglang, vllm, vllm_chat, openai or cpu")] = "sglang",
    policy: Annotated[str, POLICY] = "default",
) -> None:
    """Say that an engine serves a policy; proxies probe it before they use it."""
    check_kind(kind, "--kind")
    if not url.startswith(("http://", "https://")):
        raise usage(f"{url!r} is no URL", hint="polynya engine add http://HOST:PORT --kind sglang")
    async with open_bus(load()) as bus:
        await add_engine(bus, policy_id=policy, url=url, kind=kind, added_by="polynya engine add")
    out.print(f"policy {policy}: {kind} at {url}; whether it can be used: polynya engine list", markup=False)


@app.command("remove")
@async_command
async def remove(
    url: Annotated[str, typer.Argument(help="the engine's base URL")],
    *,
    policy: Annotated[str, POLICY] = "default",
) -> None:
    """Say that an engine no longer serves a policy; calls that run on it go on."""
    async with open_bus(load()) as bus:
        known = [e for e in await registered_engines(bus) if (e.policy_id, e.url) == (policy, url.rstrip("/"))]
        if not known:
            raise CommandError(f"policy {policy} has no engine {url}", hint="polynya engine list", code=ExitCode.USAGE)
        await remove_engine(bus, policy_id=policy, url=url, reason="polynya engine remove")
    out.print(f"policy {policy}: no longer at {url}", markup=False)


@app.command("list")
@async_command
async def list_(*, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """The engines on the timeline, and what the proxies found out about them."""
    settings = load()
    async with open_bus(settings) as bus:
        engines = await registered_engines(bus)
        proxies = await live_proxies(bus)
    healths = []
    for proxy in proxies:
        try:
            healths.append(await call_admin(settings, proxy.admin_address, "/health"))
        except CommandError as exc:  # another machine's proxy may have another key
            err.print(f"proxy {proxy.node_id} doesn't tell: {exc}", markup=False)
    states = engine_states(healths)
    rows = [
        {
            "policy_id": engine.policy_id,
            "url": engine.url,
            "kind": engine.kind,
            "state": states.get((engine.policy_id, engine.url), "unknown"),
            "added_by": engine.added_by,
        }
        for engine in engines
    ]
    if as_json:
        print_json(rows)
        return
    table = Table("policy", "engine", "kind", "state", "added by")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row.values()))
    out.print(table)


def check_kind(kind: str, option: str = "--engine-kind") -> None:
    """Raises the command's error for a kind that no client speaks to."""
    from capture_proxy.engines import ENGINE_KINDS

    if kind not in ENGINE_KINDS:
        raise usage(f"engine kind {kind!r} is none of {', '.join(ENGINE_KINDS)}", hint=f"{option} sglang")
