"""The step loop: which requests are computed together, what their tokens mean, and the controls between two steps.

All state lives on the event loop; only `Model.step` and `Model.load_weights` run in the one worker thread, and never at
the same time. Aborts take effect between two steps, so not while the engine is paused (as in SGLang).
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from compose.cpu_engine.model import Model, Row
from compose.cpu_engine.planner import Planner
from compose.cpu_engine.prefix_cache import PrefixCache
from compose.cpu_engine.sequence import FinishReason, Sequence
from compose.cpu_engine.text import Tokenizer

log = structlog.get_logger()

# Thousands of slow replies are due at thousands of moments; waking for each would cost more than giving them out.
TICK_S = 0.002
ABORTED = FinishReason("abort", message="Aborted")
ABORTED_WAITING = FinishReason("abort", message="Abort in waiting queue")


class Scheduler:
    """Continuous batching over one model. Start it with `run()` as a task; every other method is for the same loop."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        *,
        version: str,
        max_running: int,
        chunk_tokens: int,
        cache_tokens: int,
    ) -> None:
        self.version = version
        """The weight version of tokens made from now on."""
        self.busy_s = 0.0
        """Seconds in which the model computed since `started_at`, a moment of `time.monotonic()`."""
        self.started_at = time.monotonic()
        self._model = model
        self._tokenizer = tokenizer
        self._cache = PrefixCache(cache_tokens)
        self._planner = Planner(self._cache, model.layer_count, max_running=max_running, chunk_tokens=chunk_tokens)
        self._active: list[Sequence] = []
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-step")
        self._wake = asyncio.Event()
        self._between_steps = asyncio.Lock()
        self._resumed = asyncio.Event()  # cleared while paused
        self._resumed.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._admitting = asyncio.Event()  # cleared while a weight update waits for the running requests
        self._admitting.set()

    @property
    def is_paused(self) -> bool:
        """Whether `pause` was called and `resume` wasn't yet."""
        return not self._resumed.is_set()

    @property
    def active_count(self) -> int:
        """Requests that are waiting or running."""
        return len(self._active)

    @property
    def cached_tokens(self) -> int:
        """Tokens in the prefix cache."""
        return self._cache.tokens

    async def submit(self, sequence: Sequence) -> None:
        """Queue a request; waits while the engine is paused or about to change its weights."""
        while self.is_paused or not self._admitting.is_set():
            await self._resumed.wait()
            await self._admitting.wait()
        self._active.append(sequence)
        self._idle.clear()
        self._wake.set()

    def abort(self, rid_prefix: str | None) -> None:
        """Ask requests whose id starts with `rid_prefix` (None: all) to end before the next step."""
        for sequence in self._active:
            if rid_prefix is None or sequence.rid.startswith(rid_prefix):
                sequence.is_abort_wanted = True
        self._wake.set()

    def abort_one(self, sequence: Sequence) -> None:
        """Ask this very request to end before the next step."""
        sequence.is_abort_wanted = True
        self._wake.set()

    async def pause(self, mode: str) -> None:
        """Stop stepping: `abort` ends all requests first, `retract` drops their keys and values, `in_place` keeps them."""
        if mode == "abort":
            self.abort(None)
            self._resumed.clear()
            async with self._between_steps:
                self._apply_aborts()
            return
        self._resumed.clear()
        async with self._between_steps:  # the running step ends first
            if mode == "retract":
                for sequence in self._active:
                    self._retract(sequence)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._resumed.set()
        self._wake.set()

    def flush_cache(self) -> bool:
        """Forget the prefix cache; refused (False) while requests hold keys and values."""
        if any(sequence.storage is not None for sequence in self._active):
            return False
        self._cache.clear()
        return True

    def set_version(self, version: str) -> None:
        """Name the weights anew without changing them."""
        self.version = version

    async def load_weights(self, path: Path, *, version: str | None, flush_cache: bool) -> tuple[int, bool]:
        """Exchange the weights; without a pause this waits until no request runs.

        Returns (paused requests, whether the cache could be flushed if that was asked). Raises `ModelError`, and then the
        old weights are still in force.
        """
        if not self.is_paused:
            self._admitting.clear()
        try:
            if not self.is_paused:
                await self._idle.wait()
            async with self._between_steps:
                await asyncio.get_running_loop().run_in_executor(self._worker, self._model.load_weights, path)
                for sequence in self._active:
                    self._forget_lookahead(sequence)
                if version is not None:
                    self.version = version
            return len(self._active), not flush_cache or self.flush_cache()
        finally:
            self._admitting.set()

    async def run(self) -> None:
        """Step until cancelled; a failing step ends the requests that were in it and the loop goes on."""
        try:
            while True:
                await self._resumed.wait()
                async with self._between_steps:
                    if self.is_paused:
                        continue
                    self._wake.clear()
                    self._apply_aborts()
                    await self._compute(self._planner.plan(self._active, time.monotonic()))
                    wait_s = self._give_out()
                if wait_s is None or wait_s > 0:
                    await self._sleep(wait_s)
                else:
                    await asyncio.sleep(0)  # let the handlers write this step's tokens
        finally:
            self._worker.shutdown(wait=False, cancel_futures=True)

    async def _sleep(self, wait_s: float | None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _apply_aborts(self) -> None:
        for sequence in [s for s in self._active if s.is_abort_wanted]:
            started = sequence.storage is not None or sequence.output_ids
            self._finish(sequence, ABORTED if started else ABORTED_WAITING)

    async def _compute(self, planned: list[tuple[Sequence, Row]]) -> None:
        if not planned:
            return
        rows = [row for _, row in planned]
        began = time.monotonic()
        try:
            results = await asyncio.get_running_loop().run_in_executor(self._worker, self._model.step, rows)
        except Exception as exc:  # step boundary: one bad step must not end the server
            log.exception("step.failed", requests=len(rows), tokens=sum(len(row.ids) for row in rows))
            for sequence, _ in planned:
                self._remove(sequence)
                sequence.end(error=f"the engine failed on this step: {exc}")
            return
        finally:
            self.busy_s += time.monotonic() - began
        for (sequence, _), result in zip(planned, results, strict=True):
            sequence.pending.extend(zip(result.ids, result.logprobs, result.tops, strict=True))
            self._share_prompt(sequence)

    def _share_prompt(self, sequence: Sequence) -> None:
        """Once a prompt is computed, let later requests use it while this one still runs."""
        final = len(sequence.prompt_ids) - 1  # the last token is computed again after a weight change: not final
        if sequence.storage is not None and not sequence.is_prompt_shared and sequence.storage.length >= final > 0:
            sequence.is_prompt_shared = True
            self._cache.add(sequence.prompt_ids, sequence.storage.prefix(final))

    def _give_out(self) -> float | None:
        """Hand out tokens that are due. Returns seconds to wait before the next step: 0 for none, None for no deadline."""
        now = time.monotonic()
        earliest: float | None = None
        for sequence in list(self._active):
            while sequence.pending and sequence.next_at <= now and not sequence.is_over:
                token_id, logprob, top = sequence.pending.popleft()
                sequence.take(token_id, logprob, self.version, top)
                sequence.next_at = now + sequence.token_delay_s if sequence.token_delay_s else 0.0
                sequence.changed.set()
                finish = self._finish_reason(sequence)
                if finish is not None:
                    self._finish(sequence, finish)
                if sequence.streams:
                    break  # one token per step, so that a stream has one event per token
            if not sequence.is_over:
                earliest = sequence.next_at if earliest is None else min(earliest, sequence.next_at)
        if earliest is None or earliest <= now:
            return None if earliest is None else 0.0
        return max(TICK_S, earliest - now)

    def _finish_reason(self, sequence: Sequence) -> FinishReason | None:
        limits = sequence.limits
        ids = sequence.output_ids
        if limits.stop:
            # Every token is at least one character, except pieces of characters: the tail that may hold a stop string.
            tail = self._tokenizer.decode(ids[-max(map(len, limits.stop)) - 1 :], skip_special_tokens=False)
            for stop in limits.stop:
                if stop in tail:
                    return FinishReason("stop", matched=stop)
        if ids[-1] in limits.stop_ids:
            return FinishReason("stop", matched=ids[-1])
        if len(ids) >= limits.max_new_tokens:
            return FinishReason("length", length=limits.max_new_tokens)
        if sequence.script is not None and len(ids) == len(sequence.script):
            return FinishReason("stop", matched=ids[-1])  # with ignore_eos a script still ends where it ends
        return None

    def _finish(self, sequence: Sequence, finish: FinishReason) -> None:
        self._remove(sequence)
        if sequence.storage is not None:
            ids = sequence.prompt_ids + sequence.output_ids
            length = min(sequence.storage.length, len(ids))
            if length:
                self._cache.add(ids, sequence.storage.prefix(length))
        sequence.end(finish=finish)

    def _remove(self, sequence: Sequence) -> None:
        self._active.remove(sequence)
        if not self._active:
            self._idle.set()

    def _retract(self, sequence: Sequence) -> None:
        if sequence.storage is not None:
            sequence.retractions += 1
            sequence.storage = None
            sequence.is_prompt_shared = False
            if sequence.script is not None:
                sequence.pending.clear()

    def _forget_lookahead(self, sequence: Sequence) -> None:
        """New weights: what a script computed ahead and didn't give out is computed again, from the last token given out."""
        if sequence.script is None or sequence.storage is None:
            return
        sequence.pending.clear()
        sequence.storage.truncate(len(sequence.prompt_ids) + len(sequence.output_ids) - 1)
