"""One call at the engine: samples, collects, records, and only then lets the finish go."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Final

import structlog

from capture_proxy import outcome
from capture_proxy.call import Call
from capture_proxy.engine_pool import EnginePool
from capture_proxy.engines.base import Engine, EngineChunk, EngineFinish, GenerateRequest
from capture_proxy.recorder import Recorder
from capture_proxy.rendering.base import ParsedReply
from capture_proxy.reply import Failed, Finished, ProxyError, ReasoningDelta, ReplyEvent, TextDelta
from capture_proxy.stretches import RETRY_PAUSES_S, Stretch, is_resumable, is_unreached, joined, resumed
from capture_proxy.text_in import TextReader, chat_prompt, note_prompt, stand_alone

log = structlog.get_logger(__name__)

_PASSING: Final = frozenset({"overloaded", "engine_unavailable"})
_LONGEST_PAUSE_S: Final = 5.0


class TokenReader:
    """A token-in engine's chunks, read by the model's own parser."""

    def __init__(self, call: Call) -> None:
        self._parser = call.prompt.renderer.parser(
            call.prompt.ids,
            is_parsing_tools=call.request.is_parsing_tools,
            tools=call.request.tools,
            stop=call.prompt.sampling.get("stop") or (),
        )

    @property
    def matched_stop(self) -> str | None:
        """The stop string that the output has reached, if it has."""
        return self._parser.matched_stop

    def feed(self, chunk: EngineChunk) -> list[ReasoningDelta | TextDelta]:
        """What the new ids let through."""
        return self._parser.feed(chunk.new_ids)

    def finish(self, finish: EngineFinish) -> tuple[list[ReasoningDelta | TextDelta], ParsedReply]:
        """The rest, and the parsed whole."""
        return self._parser.finish(is_cut=finish.reason == "length")


class Generation:
    """The life of a call from the engine's acceptance to its terminal event.

    `events` gives what may be shown, in order, and ends with exactly one Finished or Failed. A Finished is put there only
    after the record is durable; that is the whole point. `give_up` ends the sampling early: what was sampled until then is
    recorded as aborted.
    """

    def __init__(
        self, call: Call, recorder: Recorder, *, timeout_s: float, max_resumes: int = 0, resume_wait_s: float = 60.0
    ) -> None:
        self.call = call
        self.events: asyncio.Queue[ReplyEvent] = asyncio.Queue()
        self.settled = asyncio.Event()
        """The engine has accepted the call, or the call is over: its status is known."""
        self.error: ProxyError | None = None
        self._recorder = recorder
        self._timeout_s = timeout_s
        self._max_resumes = max_resumes
        self._resume_wait_s = resume_wait_s
        self._gave_up = ""
        self._sampling: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, engines: EnginePool) -> asyncio.Task[None]:
        """Starts the call; returns its task, for whoever must know when it is over."""
        self._sampling = asyncio.create_task(self._sample(engines), name=f"sample-{self.call.completion_id}")
        self._task = asyncio.create_task(self._run(self._sampling), name=f"call-{self.call.completion_id}")
        return self._task

    def give_up(self, reason: str) -> None:
        """Nobody waits for this call any more. Without effect once the engine has finished."""
        if self._gave_up:
            return
        if self._sampling is None:
            self._gave_up = reason
            self._recorder.abort(self.call, reason)
            self._end(Failed(ProxyError("lease_ended", f"the call was given up: {reason}")))
        elif not self._sampling.done():
            self._gave_up = reason
            self._sampling.cancel()

    async def _run(self, sampling: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait((sampling,))
            if sampling.cancelled():
                self._recorder.abort(self.call, self._gave_up or "stopped")
                self._end(Failed(ProxyError("lease_ended", "this session's lease was sealed while the call ran")))
                return
            if (raised := sampling.exception()) is not None:
                raise raised
            await self._recorder.finish(self.call)
            self._end(Finished(outcome.reply(self.call)))
        except asyncio.CancelledError:
            sampling.cancel()
            self._recorder.abort(self.call, self._gave_up or "stopped")
            raise
        except ProxyError as error:
            await self._fail(error)
        except TimeoutError:
            self.call.is_withheld = True
            self._end(
                Failed(ProxyError("internal", "the reply couldn't be recorded: neither Kafka nor the disk took it"))
            )
        except Exception:  # a call's boundary: whatever it is, the call fails and is recorded
            log.exception("call.crashed", completion_id=self.call.completion_id, session_id=self.call.session_id)
            await self._fail(ProxyError("internal", "the proxy failed on this call; its log has the details"))

    async def _fail(self, error: ProxyError) -> None:
        try:
            await self._recorder.fail(self.call, error)
        except TimeoutError:
            log.warning("call.failure_not_durable", completion_id=self.call.completion_id)
        self._end(Failed(error))

    def _end(self, event: Finished | Failed) -> None:
        if isinstance(event, Failed):
            self.error = event.error
        self.events.put_nowait(event)
        self.settled.set()

    async def _sample(self, engines: EnginePool) -> None:
        call = self.call
        if call.prompt.later is not None:
            call.prompt = await call.prompt.later()
            call.request = call.prompt.request or call.request
        chosen = await engines.choose(call.stub.policy_id, call.session_id)
        engine, call.logprobs_mode = chosen.engine, chosen.logprobs_mode
        call.engine_kind, call.engine_url = engine.kind, engine.url
        self._leave_out(engine.untold(call.prompt.sampling))
        chat = None
        if engine.is_text_in:
            call.is_text_in = True
            chat = chat_prompt(call, context_length=chosen.info.context_length if chosen.info is not None else None)
            stand_alone(call)
        reader: TextReader | TokenReader = TextReader(call) if engine.is_text_in else TokenReader(call)
        request = GenerateRequest(
            rid=call.completion_id,
            session_id=call.session_id,
            input_ids=call.prompt.ids,
            sampling=call.prompt.sampling,
            timeout_s=self._timeout_s,
            top_logprobs=call.request.top_logprobs or 0,
            chat=chat,
        )
        finish = await self._stretches(engines, engine, request, reader)
        deltas, call.parsed = reader.finish(finish)
        self._show(deltas)

    async def _stretches(
        self, engines: EnginePool, engine: Engine, request: GenerateRequest, reader: TextReader | TokenReader
    ) -> EngineFinish:
        """Samples to the end, in as many stretches as it takes; the finish of the whole."""
        call, is_text_in = self.call, engine.is_text_in
        done: list[Stretch] = []
        part, tries, waited_s = request, 0, 0.0
        while True:
            start = len(call.output_ids)
            try:
                finish = await self._stretch(engine, part, reader, is_resumed=bool(done))
            except ProxyError as error:
                pause_s = self._pause_s(error, has_begun=len(call.output_ids) > start, done=done, tries=tries)
                if pause_s is None or (waited_s := waited_s + pause_s) > self._resume_wait_s:
                    raise self._cut_short(error, done) from error
                await asyncio.sleep(pause_s)
                tries += 1
                call.notes["engine_tries"] = tries + 1
                part = replace(part, rid=f"{request.rid}-{len(done) + tries + 1}")
                chosen = await engines.choose(call.stub.policy_id, call.session_id)
                if chosen.engine.is_text_in != is_text_in:
                    raise
                engine, call.engine_url = chosen.engine, chosen.engine.url
                continue
            done.append(Stretch(start, finish))
            call.finish = joined(done, call.prompt.ids, call.output_ids)
            if finish.reason != "abort":
                return call.finish
            if is_text_in or len(done) > self._max_resumes or not is_resumable(request, call.output_ids):
                why = finish.message or "no reason given"
                raise ProxyError("engine_unavailable", f"the engine aborted the request: {why}; it can be sent again")
            call.notes["resumed"] = len(done)
            log.info("call.resumed", completion_id=call.completion_id, after_tokens=len(call.output_ids))
            following = resumed(request, call.output_ids, len(done) + tries + 1)
            if following is None:
                call.finish = replace(call.finish, reason="length")
                return call.finish
            part = following

    def _pause_s(self, error: ProxyError, *, has_begun: bool, done: list[Stretch], tries: int) -> float | None:
        """How long to wait before another try of a stretch; None: the error is the client's."""
        if has_begun:
            return None
        if done:  # in the middle of a reply the client can't be sent away: the engine is waited for
            return min(error.retry_after_s or 1.0, _LONGEST_PAUSE_S) if error.kind in _PASSING else None
        return RETRY_PAUSES_S[tries] if is_unreached(error) and tries < len(RETRY_PAUSES_S) else None

    def _cut_short(self, error: ProxyError, done: list[Stretch]) -> ProxyError:
        """An error that ends a reply which the engine had begun: one that invites the client to ask again."""
        if not done:
            return error
        return ProxyError(
            "engine_unavailable", f"the engine aborted the request and didn't go on with it: {error.message}"
        )

    async def _stretch(
        self, engine: Engine, request: GenerateRequest, reader: TextReader | TokenReader, *, is_resumed: bool
    ) -> EngineFinish:
        call, finish = self.call, None
        async with engine.generate(request) as stream:
            call.accepted_s = call.accepted_s or time.monotonic()
            self.settled.set()
            async for chunk in stream:
                if is_resumed and chunk.new_ids and isinstance(reader, TokenReader) and reader.matched_stop:
                    # The stop string began in an earlier stretch, so the engine couldn't see it and goes on behind it.
                    return EngineFinish(reason="stop", matched=reader.matched_stop)
                self._collect(chunk)
                self._show(reader.feed(chunk))
                finish = chunk.finish or finish
        if finish is None:
            raise ProxyError("engine_error", "the engine's answer ended without a finish")
        return finish

    def _leave_out(self, names: list[str]) -> None:
        """The record holds what the engine really samples with."""
        if names:
            prompt = self.call.prompt
            sampling = {name: value for name, value in prompt.sampling.items() if name not in names}
            notes = (*prompt.notes, *(f"{name}: this engine can't be told" for name in names))
            self.call.prompt = replace(prompt, sampling=sampling, notes=notes)

    def _collect(self, chunk: EngineChunk) -> None:
        call = self.call
        if (chunk.new_ids or chunk.text or chunk.reasoning) and not call.first_token_s:
            call.first_token_s = time.monotonic()
        call.output_ids += chunk.new_ids
        call.logprobs += chunk.new_logprobs
        call.top_logprobs += chunk.new_top
        if call.is_text_in:
            note_prompt(call, chunk.prompt_ids)

    def _show(self, deltas: list[ReasoningDelta | TextDelta]) -> None:
        for delta in deltas:
            self.call.response_bytes += len(delta.text.encode("utf-8", "surrogatepass"))
            self.events.put_nowait(delta)
