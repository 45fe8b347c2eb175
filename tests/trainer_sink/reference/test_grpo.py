"""GRPO's loss by hand, the step against a slow one, and learning."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer_sink.reference.tiny import VOCAB, sequence, write_model
from trainer_sink.reference import GrpoSettings, NotFiniteError
from trainer_sink.reference.grpo import LossRule, k3, token_loss, token_shares, update
from trainer_sink.reference.model import PolicyModel

RULE = LossRule(clip_low=0.2, clip_high=0.28, tis_cap=2.0)


def losses(ratios: list[float], advantages: list[float], rule: LossRule = RULE, **more: Any) -> list[float]:
    """The losses of tokens whose captured logprob is -1."""
    captured = torch.full((len(ratios),), -1.0)
    told = token_loss(captured + torch.tensor(ratios).log(), captured, torch.tensor(advantages), rule, **more)
    return [round(x, 5) for x in told.loss.tolist()]


def test_the_ratio_is_clipped_on_the_side_that_gains() -> None:
    """By hand: min(r·A, clip(r, 0.8, 1.28)·A), negated."""
    assert losses([1.0, 1.5, 0.5], [1.0, 1.0, 1.0]) == [-1.0, -1.28, -0.5]
    assert losses([1.0, 1.5, 0.5], [-1.0, -1.0, -1.0]) == [1.0, 1.5, 0.8]


def test_a_ratio_with_a_negative_advantage_is_held_at_the_cap() -> None:
    """Nothing else bounds it: at 5 it counts as 2, and gives no gradient."""
    captured = torch.tensor([-3.0])
    logprobs = (captured + math.log(5.0)).requires_grad_()
    told = token_loss(logprobs, captured, torch.tensor([-1.0]), RULE)
    told.loss.sum().backward()
    assert told.loss.tolist() == pytest.approx([2.0])
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0]
    assert told.is_clipped.tolist() == [True]


def test_a_recomputed_anchor_weighs_each_token_by_the_truncated_ratio() -> None:
    """Trainer and engine differ by 0.5 and by 1.5 nats: weights e^0.5 and 2; the clipped ratio is against the trainer's own."""
    captured = torch.tensor([-2.0, -2.0])
    anchor = torch.tensor([-1.5, -0.5])
    told = token_loss(anchor + math.log(1.1), captured, torch.tensor([1.0, 1.0]), RULE, anchor=anchor)
    assert told.loss.tolist() == pytest.approx([-1.1 * math.exp(0.5), -1.1 * 2.0])


def test_the_kl_estimate_is_exact_in_small_cases() -> None:
    """k3 by hand; its mean over the policy's own distribution is the divergence."""
    assert k3(torch.tensor([-1.0]), torch.tensor([-1.0 + math.log(2)])).item() == pytest.approx(2 - math.log(2) - 1)
    p, q = torch.tensor([0.2, 0.8]), torch.tensor([0.5, 0.5])
    expected = float((p * (p / q).log()).sum())
    assert float((p * k3(p.log(), q.log())).sum()) == pytest.approx(expected)


def test_kl_and_entropy_enter_with_their_weights() -> None:
    """The loss plus kl_coef · k3 - entropy_coef · entropy."""
    rule = dataclasses.replace(RULE, kl_coef=0.1, entropy_coef=0.01)
    reference, entropy = torch.tensor([-1.0 + math.log(2)]), torch.tensor([3.0])
    (loss,) = losses([1.0], [1.0], rule, reference=reference, entropy=entropy)
    assert loss == pytest.approx(-1.0 + 0.1 * (2 - math.log(2) - 1) - 0.03, abs=1e-5)


def test_what_clipping_stops_has_no_gradient_and_is_counted() -> None:
    """`is_clipped` agrees with the gradient, over ratios on both sides of every bound."""
    ratios = torch.tensor([0.5, 0.9, 1.2, 1.3, 3.0])
    for sign in (1.0, -1.0):
        captured = torch.full((5,), -4.0)
        logprobs = (captured + ratios.log()).requires_grad_()
        told = token_loss(logprobs, captured, torch.full((5,), sign), RULE)
        told.loss.sum().backward()
        assert logprobs.grad is not None
        assert (logprobs.grad == 0).tolist() == told.is_clipped.tolist()


def test_every_sampled_token_or_every_sequence_counts_the_same() -> None:
    """Two traces of one session weigh one half each: shares by hand for both aggregations."""
    sequences = [
        sequence([1], [2, 3, 4, 5], weight=1.0),
        sequence([1], [2, 3], weight=0.5),
        sequence([1], [2, 3, 4], mask=[1, 0, 1], weight=0.5),
    ]
    assert token_shares(sequences, "token_mean") == pytest.approx([1 / 6, 0.5 / 6, 0.5 / 6])
    assert token_shares(sequences, "sequence_mean") == pytest.approx([1 / 8, 1 / 8, 1 / 8])


def settings(tmp_path: Path, **more: Any) -> GrpoSettings:
    """A run's settings; nothing is loaded from them here."""
    return GrpoSettings(model=tmp_path, output_dir=tmp_path, **{"lr": 1e-3, "warmup_steps": 0, "epochs": 1, **more})


def sampled(model: PolicyModel, prompt: list[int], count: int, seed: int) -> tuple[list[int], list[float]]:
    """Tokens and logprobs by the plainest loop."""
    generator = torch.Generator().manual_seed(seed)
    ids, logprobs = list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            row = model.module(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(torch.multinomial(row.exp(), 1, generator=generator)))
            logprobs.append(float(row[ids[-1]]))
    return ids[len(prompt) :], logprobs


def batch(model: PolicyModel) -> list[Any]:
    """Two groups of three two-turn sessions with unequal lengths; the middle of each response is an environment's."""
    made = []
    for group in range(2):
        prompt = [3, 1, 4, 1, 5, 9, 2, 6] + ([7, 8, group] if group else [])
        for i in range(3):
            first, one = sampled(model, prompt, 3 + i, seed=10 * group + i)
            context = [11, 12, 13 + i]
            second, two = sampled(model, prompt + first + context, 4 - i, seed=100 + i)
            mask = [1] * len(first) + [0] * 3 + [1] * len(second)
            made.append(
                sequence(
                    prompt,
                    first + context + second,
                    mask=mask,
                    logprobs=[*one, 0.0, 0.0, 0.0, *two],
                    group=str(group),
                    name=f"{group}-{i}",
                    advantage=(-1.0, 0.25, 1.0)[i],
                    weight=(1.0, 0.5, 0.5)[i],
                )
            )
    return made


def naive_loss(model: PolicyModel, sequences: list[Any], rule: LossRule) -> torch.Tensor:
    """Token by token, one sequence at a time, no prefix, no padding."""
    total, weight = torch.zeros(()), 0.0
    for s in sequences:
        ids = [*s.prompt_ids.tolist(), *s.response_ids.tolist()]
        rows = model.module(torch.tensor([ids])).logits[0].log_softmax(-1)
        for i, (token, known) in enumerate(zip(s.response_ids.tolist(), s.loss_mask.tolist(), strict=True)):
            if not known:
                continue
            ratio = (rows[len(s.prompt_ids) + i - 1, token] - float(s.logprobs[i])).exp()
            held = max(1 - rule.clip_low, min(1 + rule.clip_high, float(ratio.detach())))
            clipped = ratio if held == float(ratio.detach()) else torch.tensor(held)
            total = total - s.weight * torch.minimum(ratio * s.advantage, clipped * s.advantage)
            weight += s.weight
    return total / weight


@pytest.mark.parametrize("limit", [10_000, 30], ids=["one pass", "several"])
@pytest.mark.parametrize("share", [True, False], ids=["shared prefix", "whole"])
def test_a_step_is_that_of_a_slow_loop(model_dir: Path, tmp_path: Path, limit: int, share: bool) -> None:
    """Loss, gradient and recomputed logprobs of padded passes with a shared prefix are those of one sequence at a time."""
    model, slow = PolicyModel.load(model_dir), PolicyModel.load(model_dir)
    sequences = batch(model)
    loss = naive_loss(slow, sequences, RULE)
    loss.backward()
    grads = {name: p.grad.clone() for name, p in slow.module.named_parameters()}
    seen: dict[str, torch.Tensor] = {}

    class Spy(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            seen.update({name: p.grad.clone() for name, p in model.module.named_parameters() if p.grad is not None})

    told = update(
        model,
        Spy(model.module.parameters(), lr=1.0),
        sequences,
        settings(tmp_path, max_tokens_per_pass=limit, share_prefix=share, grad_clip=1e9),
        version="0",
    )
    assert told.loss == pytest.approx(float(loss.detach()), abs=1e-6)
    for name, gradient in grads.items():
        assert torch.allclose(seen[name], gradient, atol=2e-6), name
    assert told.max_logprob_diff < 1e-5
    assert told.checked_tokens == told.tokens == sum(s.trained_tokens for s in sequences)


def test_only_tokens_of_the_present_version_are_compared(model_dir: Path, tmp_path: Path) -> None:
    """Others were sampled with other weights; sequences without an advantage are compared, too, and not trained."""
    model = PolicyModel.load(model_dir)
    good, other, flat = batch(model)[:3]
    wrong = dataclasses.replace(other, logprobs=other.logprobs - 1.0)
    old = dataclasses.replace(wrong, version_spans=sequence([1], wrong.response_ids, version="6").version_spans)
    flat = dataclasses.replace(flat, advantage=0.0, logprobs=flat.logprobs - 0.5 * flat.loss_mask)
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.0)
    told = update(model, optimizer, [good, old, flat], settings(tmp_path), version="0")
    assert (told.sequences, told.checked_tokens) == (2, good.trained_tokens + flat.trained_tokens)
    assert told.max_logprob_diff == pytest.approx(0.5, abs=1e-4)
    assert told.where.startswith(f"session {flat.session_id} trace 0 token ")


def test_a_judge_that_refuses_leaves_the_weights(model_dir: Path, tmp_path: Path) -> None:
    """The comparison comes before anything is changed."""
    model = PolicyModel.load(model_dir)
    before = {name: p.detach().clone() for name, p in model.module.named_parameters()}

    def judge(largest: float, where: str) -> None:
        raise ValueError(f"{largest:.3f} at {where}")

    optimizer = torch.optim.AdamW(model.module.parameters(), lr=1.0)
    with pytest.raises(ValueError, match=r"0\.000 at session"):
        update(model, optimizer, batch(model), settings(tmp_path), version="0", judge=judge)
    assert all(torch.equal(p, before[name]) for name, p in model.module.named_parameters())


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_gradient_that_isnt_finite_is_never_taken(model_dir: Path, tmp_path: Path, bad: float) -> None:
    """One such step would make every weight NaN, and push it. The judge is told, the error names the session."""
    model = PolicyModel.load(model_dir)
    before = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    first, *others = batch(model)
    broken = np.where(first.loss_mask == 1, bad, 0.0).astype(np.float32)
    told: list[float] = []
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=1.0)
    with pytest.raises(NotFiniteError, match=first.session_id):
        update(
            model,
            optimizer,
            [dataclasses.replace(first, logprobs=broken), *others],
            settings(tmp_path),
            version="0",
            judge=lambda largest, _: told.append(largest),
        )
    assert told[0] > 1e30
    assert all(torch.equal(p, before[name]) for name, p in model.module.named_parameters())


def test_the_sampling_temperature_divides_the_logits(model_dir: Path, tmp_path: Path) -> None:
    """Captured at 0.7: recomputed logprobs agree when the sequence, or the settings, say so; an engine's raw ones are as they are."""
    model = PolicyModel.load(model_dir)
    ids = [1, 2, 3, 4, 5]
    with torch.no_grad():
        logits = model.module(torch.tensor([ids])).logits[0, 2:4]
    warm = [float((logits[i] / 0.7).log_softmax(-1)[ids[3 + i]]) for i in range(2)]
    raw = [float(logits[i].log_softmax(-1)[ids[3 + i]]) for i in range(2)]
    cases = [
        (sequence(ids[:3], ids[3:], logprobs=warm, temperature=0.7, advantage=1.0), 1.0),
        (sequence(ids[:3], ids[3:], logprobs=warm, advantage=1.0), 0.7),
        (sequence(ids[:3], ids[3:], logprobs=raw, temperature=0.7, logprobs_mode="raw", advantage=1.0), 1.0),
    ]
    for one, default in cases:
        told = update(
            model,
            torch.optim.SGD(model.module.parameters(), lr=0.0),
            [one],
            settings(tmp_path, temperature=default),
            version="0",
        )
        assert told.max_logprob_diff < 1e-5


def test_a_reference_model_holds_the_policy(model_dir: Path, tmp_path: Path) -> None:
    """From other weights the divergence is seen, and a strong term takes it down."""
    reference = PolicyModel.load(model_dir, is_trained=False)
    other = tmp_path / "other"
    other.mkdir()
    model = PolicyModel.load(write_model(other, seed=1))
    sequences = batch(model)
    rule = settings(tmp_path, kl_coef=10.0, epochs=1, lr=1e-2)
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=1e-2)
    told = [update(model, optimizer, sequences, rule, version="0", reference=reference) for _ in range(8)]
    assert told[0].kl_reference > 0.1
    assert told[-1].kl_reference < told[0].kl_reference / 2


@pytest.mark.parametrize("anchor", ["captured", "recomputed"])
def test_grpo_makes_the_rewarded_token_likelier(model_dir: Path, tmp_path: Path, anchor: str) -> None:
    """Sixteen samples a step, reward 1 for an even token: after 30 steps even ones have most of the probability."""
    model = PolicyModel.load(model_dir)
    rule = settings(tmp_path, lr=1e-2, epochs=2, anchor=anchor)
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=rule.lr, betas=(0.9, 0.99), weight_decay=0.0)
    prompt = [5, 6, 7]
    even = torch.arange(VOCAB) % 2 == 0
    generator = torch.Generator().manual_seed(0)

    def distribution() -> torch.Tensor:
        with torch.no_grad():
            return model.module(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)

    before = float(distribution().exp()[even].sum())
    for _ in range(30):
        row = distribution()
        tokens = torch.multinomial(row.exp(), 16, replacement=True, generator=generator)
        rewards = even[tokens].float()
        advantages = (rewards - rewards.mean()) / (rewards.std(unbiased=False) + 1e-4)
        sequences = [
            sequence(prompt, [int(t)], logprobs=[float(row[t])], name=str(i), advantage=float(a))
            for i, (t, a) in enumerate(zip(tokens, advantages, strict=True))
        ]
        update(model, optimizer, sequences, rule, version="0")
    after = float(distribution().exp()[even].sum())
    assert before < 0.75
    assert after > 0.9
