from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from compose.cpu_engine.sampling import Draw, Head, SamplingRule

# With a hidden state of [1], the weights are the logits.
PROBABILITIES = [0.4, 0.3, 0.2, 0.1]


@pytest.fixture
def head() -> Head:
    """A head whose logits are the logarithms of PROBABILITIES."""
    return Head(torch.log(torch.tensor(PROBABILITIES)).unsqueeze(1))


def drawn(head: Head, rule: SamplingRule, count: int = 2000) -> Counter[int]:
    generator = torch.Generator().manual_seed(11)
    ids, _, _ = head.draw(torch.ones((count, 1)), [Draw(rule, generator) for _ in range(count)])
    return Counter(ids)


def test_logprobs_are_those_after_the_temperature(head: Head) -> None:
    """Temperature 0.5 squares the probabilities before they are normalised."""
    targets = [0, 1, 2, 3]
    _, logprobs, _ = head.draw(torch.ones((4, 1)), [Draw(SamplingRule(temperature=0.5), target=t) for t in targets])
    total = sum(p * p for p in PROBABILITIES)
    assert logprobs == pytest.approx([math.log(p * p / total) for p in PROBABILITIES], abs=1e-5)


@pytest.mark.parametrize(
    ("rule", "support"),
    [
        (SamplingRule(), {0, 1, 2, 3}),
        (SamplingRule(top_k=2), {0, 1}),
        (SamplingRule(top_p=0.65), {0, 1}),
        (SamplingRule(top_p=0.3), {0}),
        (SamplingRule(min_p=0.45), {0, 1, 2}),
        (SamplingRule(top_k=3, top_p=0.5), {0, 1}),
        (SamplingRule(top_k=100), {0, 1, 2, 3}),
        (SamplingRule(temperature=0.0), {0}),
        (SamplingRule(top_k=1), {0}),
    ],
)
def test_only_the_allowed_tokens_are_drawn_in_proportion(head: Head, rule: SamplingRule, support: set[int]) -> None:
    """Filters bound the support, and what is left keeps its proportions (within 4 standard deviations)."""
    counts = drawn(head, rule)
    assert set(counts) == support
    total = sum(PROBABILITIES[i] for i in support)
    for token in support:
        expected = PROBABILITIES[token] / total
        deviation = math.sqrt(expected * (1 - expected) / 2000)
        assert abs(counts[token] / 2000 - expected) <= 4 * deviation + 1e-9


def test_filters_do_not_change_the_logprob(head: Head) -> None:
    """With top_p the reported log-probability is that of the untruncated distribution."""
    ids, logprobs, _ = head.draw(torch.ones((1, 1)), [Draw(SamplingRule(top_p=0.1), torch.Generator().manual_seed(0))])
    assert ids == [0]
    assert logprobs[0] == pytest.approx(math.log(0.4), abs=1e-5)


def test_greedy_reports_the_raw_logprob(head: Head) -> None:
    """Temperature 0 is not a division: the log-probability is the model's own."""
    _, logprobs, _ = head.draw(torch.ones((1, 1)), [Draw(SamplingRule(temperature=0.0))])
    assert logprobs[0] == pytest.approx(math.log(0.4), abs=1e-5)


def test_a_generator_repeats_itself(head: Head) -> None:
    """The same seed draws the same tokens."""
    assert drawn(head, SamplingRule()) == drawn(head, SamplingRule())


def test_rows_of_different_rules_share_a_block(head: Head) -> None:
    """Each row of a batch larger than a block is scaled by its own temperature."""
    temperatures = [0.5 + 0.1 * i for i in range(40)]
    draws = [Draw(SamplingRule(temperature=t), target=2) for t in temperatures]
    _, together, _ = head.draw(torch.ones((40, 1)), draws)
    alone = [head.draw(torch.ones((1, 1)), [draw])[1][0] for draw in draws]
    assert together == pytest.approx(alone, abs=1e-6)
    assert together[0] < together[-1]  # a hotter distribution gives an unlikely token more


def test_the_likeliest_tokens_come_with_their_logprobs() -> None:
    """As many as were asked for, the likeliest first, of the distribution after the temperature; none where none are wanted."""
    head = Head(torch.tensor([[1.0], [3.0], [2.0]]))
    rule = SamplingRule(temperature=0.5)
    _, logprobs, tops = head.draw(torch.ones((2, 1)), [Draw(rule, target=1, top=2), Draw(rule, target=1)])
    assert [i for _, i in tops[0]] == [1, 2]
    assert tops[0][0][0] == pytest.approx(logprobs[0])
    assert tops[1] == []
