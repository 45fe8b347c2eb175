"""The engine behind the routes: turns a request body into a running sequence."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

import torch

from compose.cpu_engine.model import Model
from compose.cpu_engine.protocol import GenerateRequest, RequestError
from compose.cpu_engine.sampling import SamplingRule
from compose.cpu_engine.scheduler import Scheduler
from compose.cpu_engine.scripted import Policy, PolicyError, PolicyFunction, script_ids
from compose.cpu_engine.sequence import FinishReason, Limits, Sequence
from compose.cpu_engine.settings import EngineSettings
from compose.cpu_engine.text import Tokenizer

CACHE_BYTES = 2**30
CACHE_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Engine:
    """Model, tokenizer, scheduler and policy of one server."""

    settings: EngineSettings
    model: Model
    tokenizer: Tokenizer
    scheduler: Scheduler
    policy: Policy | None
    context_length: int

    @staticmethod
    def load(
        settings: EngineSettings, *, tokenizer: Tokenizer | None = None, policy: PolicyFunction | None = None
    ) -> Engine:
        """Load everything (blocking, before the server listens); raises `ModelError` or `PolicyError`.

        A `tokenizer` loaded before and a `policy` function at hand spare loading and importing them.
        """
        torch.set_num_threads(settings.threads)
        chosen = Policy(policy) if policy is not None else Policy.load(settings.policy) if settings.policy else None
        model = Model(settings.model)
        tokenizer = tokenizer or Tokenizer(settings.model)
        limit = settings.cache_tokens
        if limit is None:
            limit = min(CACHE_TOKENS, CACHE_BYTES // model.bytes_per_cached_token)
        scheduler = Scheduler(
            model,
            tokenizer,
            version=settings.weight_version,
            max_running=settings.max_running_requests,
            chunk_tokens=settings.chunk_tokens,
            cache_tokens=limit,
        )
        return Engine(settings, model, tokenizer, scheduler, chosen, settings.context_length or model.context_length)

    async def begin(self, request: GenerateRequest, body: dict[str, Any], *, scripted: bool = True) -> Sequence:
        """Check a request against the model and queue it; raises `RequestError` (400, or 500 for a broken policy).

        Without `scripted` the model answers, whatever the policy.
        """
        is_scripted = self.policy is not None and scripted
        if request.sampling_params.grammars and not is_scripted:
            names = ", ".join(request.sampling_params.grammars)
            raise RequestError(
                f"Grammar-based generation ({names}) is not supported by this engine: the replies of a scripted policy can follow it, "
                "or serve the model with SGLang"
            )
        prompt_ids = request.input_ids
        if prompt_ids is None:
            # A long prompt takes a tenth of a second and more.
            prompt_ids = await asyncio.to_thread(self.tokenizer.encode, request.text or "", add_special_tokens=True)
        limits = self._limits(request, prompt_ids)
        params = request.sampling_params
        sequence = Sequence(
            rid=request.rid or uuid.uuid4().hex,
            prompt_ids=prompt_ids,
            rule=SamplingRule(
                params.temperature, params.top_p, None if params.top_k == -1 else params.top_k, params.min_p
            ),
            limits=limits,
            streams=request.stream,
            top=(request.top_logprobs_num or 0) if request.return_logprob else 0,
            token_delay_s=self.settings.token_delay_ms / 1000,
        )
        if limits.max_new_tokens == 0:
            sequence.end(finish=FinishReason("length", length=0))
            return sequence
        if self.policy is not None and scripted:
            await self._script(sequence, self.policy, body)
        else:
            sequence.generator = torch.Generator()
            if params.sampling_seed is None:
                sequence.generator.seed()
            else:
                sequence.generator.manual_seed(params.sampling_seed)
        await self.scheduler.submit(sequence)
        return sequence

    async def _script(self, sequence: Sequence, policy: Policy, body: dict[str, Any]) -> None:
        prompt = await asyncio.to_thread(self.tokenizer.decode, sequence.prompt_ids, skip_special_tokens=False)
        try:
            scripted = await policy.reply(prompt, body)
        except PolicyError as exc:
            raise RequestError(str(exc), status=500) from exc
        limits = sequence.limits
        sequence.script = script_ids(scripted.text, self.tokenizer, limits.stop_ids, limits.max_new_tokens)
        if scripted.token_delay_ms is not None:
            sequence.token_delay_s = scripted.token_delay_ms / 1000

    def _limits(self, request: GenerateRequest, prompt_ids: list[int]) -> Limits:
        count = len(prompt_ids)
        if count == 0:
            raise RequestError("The prompt is empty: text or input_ids needs at least one token.")
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.model.vocab_size:
            raise RequestError(f"input_ids must be in [0, {self.model.vocab_size - 1}], the model's vocabulary.")
        context = self.context_length
        if count >= context:
            raise RequestError(
                f"The input ({count} tokens) is longer than the model's context length ({context} tokens)."
            )
        params = request.sampling_params
        wanted = params.max_new_tokens
        if wanted is not None and count + wanted > context:
            raise RequestError(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a "
                f"total of {count + wanted} tokens: {count} tokens from the input messages and {wanted} tokens for the "
                "completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit."
            )
        stop_ids: frozenset[int] = frozenset()
        if not params.ignore_eos:  # in SGLang it switches off the request's own stop ids, too
            eos = self.tokenizer.eos_id
            stop_ids = (
                self.model.eos_ids
                | frozenset(params.stop_token_ids or ())
                | ({eos} if eos is not None else frozenset())
            )
        return Limits(
            max_new_tokens=context - count if wanted is None else wanted, stop=params.stop_strings(), stop_ids=stop_ids
        )
