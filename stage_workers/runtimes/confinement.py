"""What every runtime must keep its programs from, as checks beside those of `checks`: limits, and the network."""

from __future__ import annotations

import os

from stage_workers.runtimes import probes
from stage_workers.runtimes.base import Runtime
from stage_workers.runtimes.bench import Bench, NotHere, check, holds, same, sh


@check
async def memory_limit(bench: Bench) -> None:
    """A program that takes more memory than the task allows fails; one below it doesn't."""
    async with bench.runtime(memory_mb=256) as place:
        few = await sh(place, "dd if=/dev/zero of=/dev/null bs=16M count=1")
        holds(few.succeeded, f"16 MB of 256 were refused: {few.tail()}")
        much = await sh(place, "dd if=/dev/zero of=/dev/null bs=900M count=1")
        holds(much.exit_code != 0, "900 MB were had, with a limit of 256")
        holds((await sh(place, "true")).succeeded, "nothing runs any more after a program was refused memory")


@check
async def process_limit(bench: Bench) -> None:
    """A program can't start more processes than the task allows."""
    if bench.spec.kind == "local" and os.geteuid() == 0:
        raise NotHere("root isn't bound by a limit of processes; run the worker as an ordinary user")
    async with bench.runtime(pids=200) as place:
        script = "n=0; while [ $n -lt 400 ]; do sleep 30 & n=$((n+1)); done; echo all"
        result = await sh(place, script)
        holds(b"all" not in result.stdout, "400 processes were started, with a limit of 200")
        holds((await sh(place, "true")).succeeded, "nothing runs any more after a program met the limit")


@check
async def model_is_reached(bench: Bench) -> None:
    """A program reaches each listener of its runtime at the address that it is given, and talks both ways."""
    async with (
        bench.runtime() as place,
        probes.answering(await place.listen(), b"one") as first,
        probes.answering(await place.listen(), b"two") as second,
    ):
        holds(first != second, "two listeners have the same address")
        for address, answer in ((first, b"one"), (second, b"two")):
            same(await _reach(place, address), answer, f"what was said at {address}")
        if (await sh(place, "command -v bash")).succeeded:
            # The way that is tried below, where it must lead nowhere.
            plain = f"/bin/sh -c '{probes.CONNECT_WITH_BASH}' $1 $2"
            same(await _reach(place, second, plain), b"two", "what was said when bash connected")


@check
async def nothing_else_is_reached(bench: Bench) -> None:
    """No service of this machine is reached, on whatever address, and no other session's model."""
    async with bench.runtime() as place, bench.runtime() as other:
        if place.is_trusted:
            raise NotHere(
                "this machine allows no network namespace: programs reach what the machine reaches (is_trusted)"
            )
        async with probes.answering(await other.listen(), b"other") as others, probes.services() as services:
            for address in (others, *services):
                holds(await _reach(place, address) is None, f"a program reached {address}")
            for address in services:
                way_out = f"nsenter -t 1 -n /bin/sh -c '{probes.CONNECT_WITH_BASH}' $1 $2"
                holds(await _reach(place, address, way_out) is None, f"a program reached {address} by way of process 1")


async def _reach(place: Runtime, address: str, script: str = probes.CONNECT) -> bytes | None:
    """What is said at an address when a program in the runtime connects; None when it can't."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    result = await sh(place, script, host, port)
    if result.exit_code == probes.NO_TOOL:
        raise NotHere("the image has neither python3, bash nor nc, with one of which a connection could be tried")
    return result.stdout.strip() if result.succeeded and result.stdout else None
