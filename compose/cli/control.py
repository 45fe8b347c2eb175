"""`polynya cancel`, `pause`, `drain`, `resume`: ask the fleet to end, hold or go on with what runs."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from bus import Bus
from compose.cli.connect import open_bus
from compose.cli.console import async_command, out
from compose.cli.log_source import duration_s
from compose.cli.status import resolve_session, states
from compose.controls import publish_control
from compose.errors import usage
from compose.groups import Overview
from compose.settings import load
from schemas.records import ControlAction, Heartbeat, SessionState
from schemas.records.base import Stage

_Policy = Annotated[str | None, typer.Option("--policy", help="everything of this policy")]
_Task = Annotated[str | None, typer.Option("--task", help="everything of this task")]
_Group = Annotated[str | None, typer.Option("--group", help="this group (an id, or its start)")]
_Node = Annotated[str | None, typer.Option("--node", help="this worker or proxy")]
_All = Annotated[bool, typer.Option("--all", help="the whole fleet")]
_For = Annotated[
    str | None, typer.Option("--for", help="it ends by itself after 90s, 30m, 12h, 7d (default: by `resume`)")
]
_Reason = Annotated[str, typer.Option(help="why, for the record")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("cancel")(cancel)
    app.command("pause")(pause)
    app.command("drain")(drain)
    app.command("resume")(resume)


@async_command
async def cancel(
    target: Annotated[str, typer.Argument(help="a session id (or its start), or what the option says")] = "",
    *,
    task: Annotated[bool, typer.Option("--task", help="TARGET is a task: cancel all its sessions")] = False,
    group: Annotated[bool, typer.Option("--group", help="TARGET is a group (an id, or its start)")] = False,
    policy: Annotated[bool, typer.Option("--policy", help="TARGET is a policy")] = False,
    node: Annotated[bool, typer.Option("--node", help="TARGET is a worker: cancel what it holds")] = False,
    everything: _All = False,
    reason: _Reason = "cancelled by an operator",
) -> None:
    """Cancel a session, or all of a task, group, policy or worker; each ends once, with status cancelled and what it has."""
    kinds = [k for k, on in (("task", task), ("group", group), ("policy", policy), ("node", node)) if on]
    if len(kinds) + everything > 1:
        raise usage("only one of --task, --group, --policy, --node and --all", hint="polynya cancel --help")
    if everything == bool(target):
        raise usage("name what to cancel, or --all" if not target else "--all takes no TARGET", hint="polynya status")
    kind = "fleet" if everything else kinds[0] if kinds else "session"
    async with open_bus(load()) as bus:
        name = "*" if everything else await _target(bus, kind, target)
        current = [s for s in (await states(bus)).values() if kind == "fleet" or _name(s, kind) == name]
        left = [s for s in current if s.stage is not Stage.ENDED]
        waiting = 0
        if kind in ("task", "group", "policy", "fleet"):
            groups = (await Overview.read(bus)).groups.values()
            meant = [g for g in groups if kind == "fleet" or g.names[kind] == name]
            waiting = sum(g.size for g in meant if g.stage == "waiting")
            if not meant and not current:
                raise usage(f"no session of a {kind} {name!r}", hint="polynya status")
        if current and not left and not waiting:
            out.print("nothing to cancel: ended already")
            return
        await publish_control(bus, ControlAction.CANCEL, kind, name, reason)
    out.print(f"asked to cancel {max(1, len(left) + waiting)} session(s); follow with: polynya status")


@async_command
async def pause(
    *,
    policy: _Policy = None,
    task: _Task = None,
    group: _Group = None,
    node: _Node = None,
    everything: _All = False,
    for_: _For = None,
    reason: _Reason = "paused by an operator",
) -> None:
    """Hold back: no group is admitted, no session is given to a worker; what a worker has goes on. Until `resume`."""
    targets = {"policy": policy, "task": task, "group": group, "node": node}
    await _hold(ControlAction.PAUSE, targets, everything, reason, for_)


@async_command
async def drain(
    *,
    policy: _Policy = None,
    task: _Task = None,
    group: _Group = None,
    node: _Node = None,
    everything: _All = False,
    for_: _For = None,
    reason: _Reason = "drained by an operator",
) -> None:
    """Let run out: no further group is admitted, open ones run to their end; a worker finishes what it has. Until `resume`."""
    targets = {"policy": policy, "task": task, "group": group, "node": node}
    await _hold(ControlAction.DRAIN, targets, everything, reason, for_)


@async_command
async def resume(
    *,
    policy: _Policy = None,
    task: _Task = None,
    group: _Group = None,
    node: _Node = None,
    everything: _All = False,
    reason: _Reason = "resumed by an operator",
) -> None:
    """Go on with what was paused or drained; --all with everything."""
    await _hold(
        ControlAction.RESUME, {"policy": policy, "task": task, "group": group, "node": node}, everything, reason
    )


async def _hold(
    action: ControlAction, targets: dict[str, str | None], everything: bool, reason: str, for_: str | None = None
) -> None:
    for_ms = int(duration_s("--for", for_) * 1000) if for_ is not None else 0
    if for_ is not None and not for_ms:
        raise usage(f"--for {for_!r} is no time at all", hint="--for 10m")
    named = {kind: target for kind, target in targets.items() if target}
    if len(named) + everything != 1:
        raise usage(
            "name exactly one of --policy, --task, --group, --node and --all", hint=f"polynya {action} --policy default"
        )
    kind, target = next(iter(named.items()), ("fleet", "*"))
    async with open_bus(load()) as bus:
        name = target if kind == "fleet" else await _target(bus, kind, target)
        if action is ControlAction.RESUME and kind != "fleet":
            held = (await Overview.read(bus)).controls.in_force(int(time.time() * 1000))
            if (kind, name) not in held:
                raise usage(f"{kind} {name} is neither paused nor drained", hint="polynya status")
        await publish_control(bus, action, kind, name, reason, for_ms=for_ms)
    how_long = f", for {for_}" if for_ else ""
    out.print(f"{action}: {kind if name == '*' else f'{kind} {name}'}{how_long}", markup=False)


async def _target(bus: Bus, kind: str, text: str) -> str:
    """The whole name of a target; a usage error for one that nobody has heard of."""
    if kind == "session":
        return await resolve_session(bus, text)
    if kind == "node":
        known = await _nodes(bus)
        if text not in known:
            raise usage(
                f"no worker or proxy {text!r} is known", hint=f"one of {', '.join(sorted(known))}" if known else ""
            )
    if kind == "group":
        found = [name for name in (await Overview.read(bus)).groups if name.startswith(text)]
        if len(found) != 1:
            what = "no group" if not found else f"{len(found)} groups"
            raise usage(f"{what} with an id that starts with {text!r}", hint="polynya status --groups")
        return found[0]
    return text


async def _nodes(bus: Bus) -> set[str]:
    return {
        record.node_id
        async for delivery in bus.tail(["rollout.nodes"], start="earliest", until_end=True)
        if delivery.value and isinstance(record := delivery.decode(), Heartbeat) and record.role in ("worker", "proxy")
    }


def _name(state: SessionState, kind: str) -> str:
    names = {
        "session": state.session_id,
        "group": state.group_id,
        "task": state.task_id,
        "policy": state.policy_id,
        "node": state.worker_id,
    }
    return names[kind]
