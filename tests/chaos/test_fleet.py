"""A storm's fleet as it is set up; that it runs is shown by the storms."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.chaos.fleet import STOP_ORDER, Fleet
from tests.chaos.plan import Blow, How, Kind, Target, fleet_of
from tests.chaos.process import PartProcess


def fleet(root: Path, **fields: Any) -> Fleet:
    """A fleet that isn't started."""
    one = Fleet(root, lambda _: None, **fields)
    one._cluster = cast("Any", SimpleNamespace(bootstrap="127.0.0.1:1", kill=None))
    one._engine_url, one._model = "http://127.0.0.1:2", "model"
    return one


def test_each_process_has_a_directory_and_a_name_of_its_own(tmp_path: Path) -> None:
    """Two proxies under one name would take each other for a restart; two workers in one directory would reap each other."""
    one = fleet(tmp_path)
    proxies = [one._part(Kind.PROXY, f"proxy-{n}") for n in (1, 2)]
    workers = [one._part(Kind.WORKER, f"worker-{n}", worker_id=f"worker-{n}") for n in (1, 2)]
    assert [p.env["POLYNYA_PROXY_ID"] for p in proxies] == ["proxy-1", "proxy-2"]
    assert [w.env["POLYNYA_WORKER_ID"] for w in workers] == ["worker-1", "worker-2"]
    everyone = [*proxies, *workers]
    assert len({p.env["POLYNYA_STATE_DIR"] for p in everyone}) == 4
    assert len({p.env["POLYNYA_ADMIN_KEY"] for p in everyone}) == 1
    assert len({p.ready_file for p in everyone}) == len({p.log_file for p in everyone}) == 4


@pytest.mark.parametrize(("is_one_machine", "shared"), [(True, 1), (False, 0)])
def test_proxies_of_one_machine_share_their_spools(tmp_path: Path, is_one_machine: bool, shared: int) -> None:
    """Else each has its own, below its state directory."""
    one = fleet(tmp_path, is_one_machine=is_one_machine)
    parts = [one._part(Kind.PROXY, f"proxy-{n}") for n in (1, 2)]
    assert len({p.env["POLYNYA_SPOOL_DIR"] for p in parts if "POLYNYA_SPOOL_DIR" in p.env}) == shared


def test_everything_that_can_be_hit_is_stopped(tmp_path: Path) -> None:
    """Brokers go last, with their cluster."""
    assert {t.kind for t in fleet(tmp_path).targets} == {*STOP_ORDER, Kind.BROKER}
    assert fleet(tmp_path, workers=3, proxies=1).targets == fleet_of(workers=3, proxies=1)


async def test_a_broker_is_spared_while_another_is_out_of_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two of three away nothing could be acknowledged."""

    async def is_out_of_sync(_: Fleet) -> bool:
        return False

    monkeypatch.setattr(Fleet, "in_sync", is_out_of_sync)
    assert not await fleet(tmp_path).strike(Blow(0, Target("broker-1", Kind.BROKER), How.KILL, 0))


async def test_nobody_is_in_sync_without_brokers(tmp_path: Path) -> None:
    """A cluster that doesn't answer isn't whole."""
    assert not await fleet(tmp_path).in_sync()


def test_deaths_and_restarts_are_added_up(tmp_path: Path) -> None:
    """Over all parts, and the brokers."""
    one = fleet(tmp_path)
    one.parts = {
        name: PartProcess(name, "proxy", (), Path("r"), Path("l"), {}, restarts=2, deaths=[f"{name} ended"])
        for name in ("a", "b")
    }
    one.broker_restarts = 1
    assert one.restarts == 5
    assert one.own_deaths == ["a ended", "b ended"]
