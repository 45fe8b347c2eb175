"""`polynya up | down | run | doctor`: the stack and its parts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from compose.cli.console import async_command, err, out, print_json
from compose.environment import slips
from compose.errors import CommandError, ExitCode, dependency_down, usage
from compose.runtime_info import StackInfo, is_alive, load_info, log_file, running_info
from compose.settings import StackSettings, load
from compose.supervisor import tail_of

UP_WITHIN_S = 600.0
SGLANG_UP_WITHIN_S = 5400.0  # the first time it is installed; a large model is read for minutes
DOWN_WITHIN_S = 90.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("run")(run)
    app.command("doctor")(doctor)


def up(
    *,
    engine: Annotated[
        str | None, typer.Option(help="cpu, sglang, an engine's URL, or scripted:MODULE:FUNCTION (default: cpu)")
    ] = None,
    engine_url: Annotated[
        str | None, typer.Option(help="an engine that runs already: the same as --engine URL")
    ] = None,
    engine_kind: Annotated[
        str | None, typer.Option(help="what a URL speaks: sglang, vllm, vllm_chat, openai or cpu (default: sglang)")
    ] = None,
    model: Annotated[str | None, typer.Option(help="a Hugging Face model directory (default: a tiny one)")] = None,
    policy: Annotated[str | None, typer.Option(help="the policy that its engine serves (default: default)")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="return once the stack is ready")] = False,
    state_dir: Annotated[Path | None, typer.Option(help="where the stack's state lives (default: .polynya)")] = None,
    partitions: Annotated[int | None, typer.Option(min=1)] = None,
    run_slots: Annotated[int | None, typer.Option(min=1, help="sessions that run at once, per worker")] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=64, help="how many (default: 1)")] = None,
    proxies: Annotated[int | None, typer.Option(min=1, max=64, help="how many (default: 1)")] = None,
    brokers: Annotated[int | None, typer.Option(help="1 or 3 (default: 1)")] = None,
    api: Annotated[bool, typer.Option("--api", help="the HTTP API, too (see docs/api.md)")] = False,
) -> None:
    """Start a local stack: Kafka, engine, proxies, processors, workers."""
    if engine and engine_url:
        raise usage("--engine and --engine-url name two engines", hint="polynya up --engine-url URL")
    engine = engine_url or engine
    settings = load(
        engine=engine,
        engine_kind=engine_kind,
        model=model,
        policy_id=policy,
        state_dir=state_dir,
        partitions=partitions,
        run_slots=run_slots,
        workers=workers,
        proxies=proxies,
        brokers=brokers,
        api=api or None,
    )
    _check_engine(settings)
    if settings.model and not Path(settings.model).is_dir():
        raise usage(f"model {settings.model!r} is no directory", hint="polynya up --model DIRECTORY")
    if (info := running_info(settings)) is not None:
        raise usage(
            f"a stack runs in {settings.state_dir} already (pid {info.supervisor_pid})",
            hint="polynya down" + (f" --state-dir {state_dir}" if state_dir else ""),
        )
    check_ports(settings)
    for variable, meant in slips(os.environ).items():
        err.print(f"{variable} is no setting and does nothing; did you mean {meant}?", markup=False)
    if detach:
        start_detached(settings, report=lambda line: out.print(line, markup=False))
        out.print("stop it with: polynya down")
    else:
        asyncio.run(_foreground(settings))


def _check_engine(settings: StackSettings) -> None:
    from compose.cli.engine import check_kind

    kind = settings.engine
    check_kind(settings.engine_kind)
    if kind == "sglang" and not settings.model:
        raise usage("SGLang needs a model", hint="polynya up --engine sglang --model DIRECTORY")
    if (
        kind in ("cpu", "sglang")
        or kind.startswith(("http://", "https://"))
        or (kind.startswith("scripted:") and kind.count(":") == 2)
    ):
        return
    raise usage(
        f"engine {kind!r} is none of cpu, sglang, URL, scripted:MODULE:FUNCTION", hint="polynya up --engine cpu"
    )


def check_ports(settings: StackSettings) -> None:
    """A usage error for a port that is asked for and taken: now, not after minutes, when its part can't listen (Kafka looks itself)."""
    asked = {"proxy_port": settings.proxy_port, "proxy_admin_port": settings.proxy_admin_port}
    if not settings.engine.startswith(("http://", "https://")):
        asked["engine_port"] = settings.engine_port
    if settings.forward:
        asked["forward_port"] = settings.forward_port
    if settings.api:
        asked["api_port"] = settings.api_port
    for name, port in asked.items():
        if port and (problem := _cannot_listen(settings.host, port)):
            raise usage(
                f"{name} {port} on {settings.host} can't be had: {problem}",
                hint=f"`ss -ltnp sport = :{port}` says who has it; POLYNYA_{name.upper()}=0 takes a free one",
            )


def _cannot_listen(host: str, port: int) -> str:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            return exc.strerror or str(exc)
    return ""


async def _foreground(settings: StackSettings) -> None:
    from compose.stack import LocalStack

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    info = StackInfo(supervisor_pid=os.getpid())
    stack = LocalStack(settings, info, lambda line: out.print(line, markup=False))
    try:
        starting = asyncio.create_task(stack.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if not starting.cancelled():
            starting.result()
        await stack.run_until(stop)
    except Exception as exc:  # whoever waits for a detached stack reads the reason there
        info.error = str(exc)
        info.save(settings.state_dir)
        raise
    finally:
        await stack.stop()


def start_detached(settings: StackSettings, *, report: object = None) -> StackInfo:
    """Start a stack that outlives this command and wait until it is ready; its facts. CommandError when it doesn't come up."""
    say = report if callable(report) else (lambda _: None)
    log_path = log_file(settings.state_dir, "supervisor")
    log_path.parent.mkdir(parents=True, exist_ok=True)
    StackInfo().save(settings.state_dir)
    with log_path.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "compose.cli.main", "up"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **settings.as_env()},
            start_new_session=True,
        )
    within_s = SGLANG_UP_WITHIN_S if settings.engine == "sglang" else UP_WITHIN_S
    deadline, last = time.monotonic() + within_s, ""
    while time.monotonic() < deadline:
        info = load_info(settings) or StackInfo()
        if info.step and info.step != last:
            last = info.step
            say(last)
        if info.is_ready:
            return info
        if process.poll() is not None:
            raise dependency_down(
                f"the stack didn't come up: {info.error or tail_of(log_path)}", hint=f"look into {log_path.parent}"
            )
        time.sleep(0.1)
    process.terminate()
    raise dependency_down(f"the stack wasn't up after {within_s:.0f} s; see {log_path.parent}")


def down(*, state_dir: Annotated[Path | None, typer.Option(help="the stack's state directory")] = None) -> None:
    """Stop the stack that runs in the state directory; its data stays."""
    settings = load(state_dir=state_dir)
    info = running_info(settings)
    if info is None:
        out.print(f"no stack runs in {settings.state_dir}")
        return
    stop_detached(settings, info)
    out.print("stopped")


def stop_detached(settings: StackSettings, info: StackInfo) -> None:
    """Stop a running stack and wait until no process of it is left; CommandError when one stays."""
    pids = [info.supervisor_pid, *(load_info(settings) or info).pids.values()]
    os.kill(info.supervisor_pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_WITHIN_S
    while time.monotonic() < deadline:
        if not any(is_alive(pid) for pid in pids):
            return
        time.sleep(0.1)
    left = [pid for pid in pids if is_alive(pid)]
    raise CommandError(f"these processes of the stack still run: {left}", hint="look at them with ps; kill them by pid")


@async_command
async def run(
    part: Annotated[
        str, typer.Argument(help="proxy, assembler, joiner, orchestrator, processors, worker, api, engine or archive")
    ],
) -> None:
    """Run one part alone, in the foreground, against POLYNYA_BOOTSTRAP or the stack in the state directory."""
    from compose.parts import PARTS, run_part

    if part not in PARTS:
        raise usage(f"no part {part!r}", hint=f"one of {', '.join(PARTS)}")
    await run_part(part, load())


def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    runtime: Annotated[
        str, typer.Option(help="try out a runtime on this machine instead: local, docker or apptainer")
    ] = "",
    image: Annotated[str, typer.Option(help="the image to try it with (default: debian:bookworm-slim)")] = "",
) -> None:
    """Check what the stack needs on this machine; exits 3 when something necessary is missing."""
    if runtime:
        asyncio.run(_try_runtime(runtime, image or None, as_json=as_json))
        return
    from compose.doctor import check_all

    findings = check_all(load())
    if as_json:
        print_json([{"name": f.name, "ok": f.is_ok, "found": f.found, "hint": f.hint} for f in findings])
    else:
        for f in findings:
            mark = "[green]ok[/]     " if f.is_ok else "[red]missing[/]" if f.is_needed else "[yellow]absent[/] "
            out.print(f"{mark} {f.name}: ", end="")
            out.print(f.found, markup=False)
            if not f.is_ok and f.hint:
                out.print(f"        try: {f.hint}", markup=False)
    bad = [f for f in findings if not f.is_ok and f.is_needed]
    if bad:
        raise CommandError(f"{len(bad)} necessary thing(s) missing", hint=bad[0].hint, code=ExitCode.DEPENDENCY_DOWN)


async def _try_runtime(kind: str, image: str | None, *, as_json: bool) -> None:
    from compose.runtime_checks import Tried, try_runtime

    marks = {"ok": "[green]ok[/]     ", "failed": "[red]failed[/] ", "absent": "[yellow]absent[/] "}

    def report(tried: Tried) -> None:
        if as_json:
            return
        out.print(f"{marks[tried.outcome]} {tried.name} ({tried.took_s:.1f} s): ", end="")
        out.print(tried.meaning, markup=False)
        if tried.why:
            out.print(f"        {tried.why}", markup=False)

    done = await try_runtime(kind, image, report)
    if as_json:
        print_json([{"name": t.name, "outcome": t.outcome, "why": t.why, "took_s": round(t.took_s, 2)} for t in done])
    failed = [tried for tried in done if tried.outcome == "failed"]
    if failed:
        raise CommandError(
            f"runtime {kind} can't be used: {len(failed)} check(s) failed",
            hint=failed[0].why,
            code=ExitCode.DEPENDENCY_DOWN,
        )
    absent = [tried.name for tried in done if tried.outcome == "absent"]
    if not as_json:
        out.print(f"runtime {kind} can be used here" + (f", without: {', '.join(absent)}" if absent else ""))
