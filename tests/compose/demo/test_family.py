"""The demo's tasks and their reward."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import harnesses
from compose.cli.task_file import check_spec
from compose.demo.family import ALL, FILES, HELD_OUT, TRAINED, WORDS, Combination, draws, reward, task_of


def test_held_out_combinations_hold_every_word_once_and_every_file_twice() -> None:
    """So words and files are all trained, and only their combinations are new."""
    assert len(ALL) == 32
    assert sorted({*TRAINED} | {*HELD_OUT}) == sorted(ALL)
    assert not {*TRAINED} & {*HELD_OUT}
    assert Counter(c.word for c in HELD_OUT) == dict.fromkeys(WORDS, 1)
    assert Counter(c.file for c in HELD_OUT) == dict.fromkeys(FILES, 2)


def test_draws_go_through_all_trained_combinations_before_any_comes_again() -> None:
    """Three steps of eight groups see each combination once; another seed has another order."""
    first = list(islice(draws(0), 48))
    assert sorted(first[:24]) == sorted(first[24:]) == sorted(TRAINED)
    assert first[:24] != first[24:]
    assert list(islice(draws(0), 48)) == first
    assert list(islice(draws(1), 48)) != first


def test_the_reward_is_full_for_the_word_alone() -> None:
    """A newline at the end is forgiven; another word, or more words, is a fifth; no file is nothing."""
    assert [reward("delta", found) for found in ("delta", "delta\n", "ember", "delta ember", "", None)] == [
        1.0,
        1.0,
        0.2,
        0.2,
        0.2,
        0.0,
    ]


def test_a_task_is_one_that_a_worker_takes() -> None:
    """Harness, options and evaluator are accepted as they are for anyone's task file; the samples have seeds of their own."""
    spec = task_of(Combination("delta", "notes.txt"), task_id="t", samples=4, seed=70, policy_id="p", for_trainer="x")
    check_spec(spec)
    harnesses.validate(spec.harness.name, spec.harness.options, spec.harness.version)
    assert spec.instruction == "Write the word delta to notes.txt."
    assert (spec.num_samples, spec.sampling.seed, spec.for_trainer, spec.policy_id) == (4, 70, "x", "p")
