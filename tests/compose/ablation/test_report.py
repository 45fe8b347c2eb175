"""The ablation's tasks and tables."""

from __future__ import annotations

import io
import json

from rich.console import Console

from compose.ablation import ARMS, ArmResult, CapturedSet
from compose.ablation.live import LiveResult
from compose.ablation.report import live_table, offline_table, published_line, ratios, result_json, set_line
from compose.ablation.sessions import again_set, live_set, pi_set
from compose.cli.task_file import check_spec


def arm_results() -> list[ArmResult]:
    """Per request five times the updates."""
    return [
        ArmResult(
            arm=arm,
            sessions=8,
            calls=40,
            traces=40 if arm.builder == "per_request" else 8,
            trainer_updates=10 if arm.builder == "per_request" else 2,
            trained_tokens=400,
            computed_tokens=9000 if arm.builder == "per_request" else 1500,
            trainer_cpu_s=6.0 if arm.builder == "per_request" else 1.0,
            trainer_wall_s=6.5,
            longest_quarter_share=0.5 if arm is ARMS[0] else 0.25,
            final_kl=0.1,
            max_logprob_diff=1e-6,
        )
        for arm in ARMS
    ]


def printed(table: object) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(table)
    return out.getvalue()


def test_each_figure_stands_under_its_own_name_beside_the_published_ones() -> None:
    """Updates, tokens, seconds and shares apart; the ratios are of the two arms that were published."""
    results = arm_results()
    assert ratios(results) == {"trainer_updates": 5.0, "computed_tokens": 6.0, "trainer_cpu_s": 6.0}
    text = printed(offline_table("again", results))
    assert "per_request, broadcast" in text
    assert "9,000" in text
    assert "50%" in text
    assert "1185 against 218 updates (x5.4), wall-clock x5.39" in published_line()
    captured = CapturedSet({"per_request": (), "prefix_merging": ()}, ("0",), {"unrewarded": 1})
    assert "left out: 1 unrewarded" in set_line("again", captured)
    live = LiveResult(
        arm=ARMS[3],
        rewards=(0.4, 0.4, 0.7, 0.7, 0.7, 0.7, 0.7),
        sequences=200,
        trained_tokens=4000,
        trainer_s=3.0,
        wall_s=60.0,
        engine_busy_share=0.125,
    )
    assert "0.40 → 0.70 (+0.30)" in printed(live_table([live]))
    told = json.loads(json.dumps(result_json({"again": (captured, results)}, [live], seed=0)))
    assert told["sets"]["again"]["arms"][0]["arm"] == "per_request, broadcast"
    assert told["sets"]["again"]["per_request_over_prefix_merging"]["trainer_updates"] == 5.0
    assert told["live"][0]["engine_busy_share"] == 0.125
    assert told["published"]["per_request"]["trainer_updates"] == 1185


def test_every_arm_rolls_out_the_same_combinations_and_seeds() -> None:
    """Only the builder and the id differ; all task specs are valid; captured ones are for no trainer."""
    sets = [live_set(arm, 5, 4, 1, "p") for arm in ARMS]
    assert {tuple((t.instruction, t.sampling.seed) for t in tasks) for tasks in sets if tasks} == {
        tuple((t.instruction, t.sampling.seed) for t in sets[0])
    }
    assert [tasks[0].builder.name for tasks in sets] == [arm.builder for arm in ARMS]
    names = [t.task_id for tasks in sets for t in tasks]
    assert len(set(names)) == len(names)
    for task in [*pi_set(3, 4, 1, "p"), *again_set(3, 4, 1, "p")]:
        check_spec(task)
        assert task.for_trainer
