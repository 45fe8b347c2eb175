"""Everything that a run of the reference trainer is told; the command line's options carry the same names."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer_sink.credit import Advantage, CreditRule, Weighting, ZeroVariance

Aggregation = Literal["token_mean", "sequence_mean"]
Anchor = Literal["captured", "recomputed"]


class GrpoSettings(BaseModel):
    """One run. The defaults suit a tiny model on a CPU; a large one wants at least another `lr`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path = Field(description="a Hugging Face checkpoint directory to begin with")
    output_dir: Path = Field(description="where checkpoints, metrics and the curve go; a run is resumed from it")
    resume: bool = Field(default=True, description="go on from the newest checkpoint of the output directory")
    policy_id: str = Field(
        default="default", description="the policy whose groups are trained and whose weights are written"
    )
    trainer_id: str = Field(default="grpo", description="this trainer's name on the log")

    start: Literal["earliest", "latest"] | int = Field(
        default="earliest", description="where to begin without a checkpoint: an end of the log, or UTC epoch ms"
    )
    groups_per_step: int = Field(default=8, ge=1, description="groups in one step")
    task_ids: tuple[str, ...] | None = Field(default=None, description="only groups of these tasks")
    harness: str | None = Field(default=None, description="only groups that ran in this harness")
    leave_out: tuple[str, ...] = Field(default=("aux",), description="branches that aren't trained")
    max_policy_lag: int | None = Field(
        default=None, ge=0, description="skip groups with a token sampled more than so many versions ago"
    )
    max_lag: int = Field(
        default=0, ge=0, description="groups admitted ahead of this trainer; 0: the orchestrator's own limit"
    )
    until_end: bool = Field(default=False, description="stop at the end of the log as it was at the beginning")

    max_steps: int | None = Field(default=None, ge=1, description="stop after this step")
    until_idle_s: float | None = Field(default=None, gt=0, description="stop when no group comes for so long")
    stop_at_gain: float | None = Field(
        default=None, description="stop when the mean reward of the last 5 steps is so far above the baseline"
    )
    baseline: float | None = Field(
        default=None, description="the reward before training; none: the mean of the first 2 steps"
    )

    advantage: Advantage = Field(default="group_norm", description="how rewards become advantages")
    weighting: Weighting = Field(
        default="per_session", description="per_session: a trace weighs 1 / traces of its session"
    )
    zero_variance: ZeroVariance = Field(
        default="keep",
        description="groups whose rewards are all the same: keep (out of the loss, their logprobs are compared), drop or error",
    )
    std_epsilon: float = Field(default=1e-4, ge=0, description="added to a group's standard deviation")
    ddof: Literal[0, 1] = Field(default=0, description="of that standard deviation: 0 population's, 1 sample's")
    failed_reward: float | None = Field(default=None, description="reward of a session that failed without a verdict")

    epochs: int = Field(default=2, ge=1, description="passes over a step's batch, one optimizer step each")
    clip_low: float = Field(default=0.2, gt=0, le=1, description="the ratio is clipped below 1 - this")
    clip_high: float = Field(default=0.28, gt=0, description="the ratio is clipped above 1 + this")
    anchor: Anchor = Field(
        default="captured",
        description="what the clipped ratio compares with: the captured logprobs, or the trainer's own at the step's begin "
        "(then each token is weighted by the truncated ratio of those two)",
    )
    tis_cap: float = Field(default=2.0, ge=1, description="truncation of importance weights: none is larger")
    aggregation: Aggregation = Field(
        default="token_mean",
        description="token_mean: every sampled token counts the same; sequence_mean: every sequence",
    )
    kl_coef: float = Field(default=0.0, ge=0, description="weight of the KL divergence (k3) from the reference model")
    reference_model: Path | None = Field(
        default=None, description="of the KL term; none: the model that the run began with"
    )
    entropy_coef: float = Field(default=0.0, ge=0, description="weight of an entropy bonus")
    temperature: float = Field(
        default=1.0, gt=0, description="the sampling temperature of sessions whose task doesn't set one"
    )

    lr: float = Field(default=1e-3, gt=0, description="AdamW's learning rate after the warm-up")
    warmup_steps: int = Field(default=6, ge=0, description="steps of linear warm-up")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW's first beta")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="AdamW's second beta")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay")
    grad_clip: float = Field(default=1.0, gt=0, description="largest norm of the gradient")

    device: str = Field(default="cpu", description="cpu, cuda, cuda:1 …")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of the computation and the pushed weights; the trained ones stay float32"
    )
    threads: int = Field(default=1, ge=1, description="torch's threads on the CPU: one is fastest for a tiny model")
    max_tokens_per_pass: int = Field(
        default=16_384, ge=1, description="tokens in one forward pass, padding included; a longer sequence goes alone"
    )
    share_prefix: bool = Field(default=True, description="compute what sequences begin with in common only once")
    gradient_checkpointing: bool = Field(default=False, description="recompute activations instead of keeping them")
    seed: int = Field(default=0, description="of torch's generators (the update itself draws nothing)")

    logprob_limit: float = Field(
        default=1e-4,
        gt=0,
        description="how far recomputed logprobs may be from the captured ones, under the same weights",
    )
    on_mismatch: Literal["warn", "stop"] = Field(default="warn", description="beyond that limit")

    push: bool = Field(
        default=True, description="write the policy's weights: claim it, push every step; off: train only"
    )
    push_at_start: bool = Field(
        default=True, description="push before the first step, too, so that the engines have the trainer's weights"
    )
    push_attempts: int = Field(default=3, ge=1, description="tries for a push that an engine didn't take")
    engines: tuple[str, ...] | None = Field(
        default=None, description="engine URLs; none: those of the policy's timeline"
    )
    engine_key_file: Path | None = Field(
        default=None, description="a file that holds the engines' admin key, where they want one"
    )
    keep_checkpoints: int = Field(default=2, ge=1, description="checkpoints that are kept")

    tensorboard: bool = Field(default=False, description="write TensorBoard events (extra tensorboard)")
    wandb: bool = Field(default=False, description="write a Weights & Biases run, offline (extra wandb)")
    plot: bool = Field(default=True, description="draw rewards.png at the end, where matplotlib is installed")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.engine_key()  # a wrong file is told of before anything begins
        if self.reference_model is not None and self.kl_coef == 0:
            raise ValueError("reference_model is given but kl_coef is 0: the model would only be loaded. Set kl_coef")
        if self.dtype == "bfloat16" and self.logprob_limit < 1e-3:
            raise ValueError(f"logprob_limit {self.logprob_limit:g} can't be met in bfloat16: set it to 5e-2 or so")
        return self

    def engine_key(self) -> str:
        """What the key's file holds, without blanks around it; '' without one. ValueError when it can't be read or is empty."""
        if self.engine_key_file is None:
            return ""
        try:
            key = self.engine_key_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"engine_key_file {self.engine_key_file} can't be read: {error}") from error
        if not key:
            raise ValueError(f"engine_key_file {self.engine_key_file} is empty: put the engines' admin key there")
        return key

    def lr_at(self, step: int) -> float:
        """The learning rate of a step (from 1): a linear warm-up, then constant."""
        return self.lr * min(1.0, step / self.warmup_steps) if self.warmup_steps else self.lr

    @property
    def credit(self) -> CreditRule:
        """As `sequences_of` takes it."""
        return CreditRule(
            advantage=self.advantage,
            weighting=self.weighting,
            zero_variance=self.zero_variance,
            failed_reward=self.failed_reward,
            std_epsilon=self.std_epsilon,
            ddof=self.ddof,
        )
