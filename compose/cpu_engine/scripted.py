"""Policies that choose the text of a reply: `scripted:MODULE:FUNCTION`."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from compose.cpu_engine.settings import POLICY_SCHEME
from compose.cpu_engine.text import Tokenizer

# Policies may block (a test's barrier, a sleep): so many of them at a time don't hold up one another.
BLOCKING_POLICIES = 64


PolicyFunction = Callable[[str, dict[str, Any]], Any]
"""`reply(prompt, request)`, plain or async, returning `str` or `Scripted`."""


class PolicyError(RuntimeError):
    """A policy that can't be imported, raised, or returned something else than text."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """What a policy may return instead of a plain string, to set the pace of this one reply."""

    text: str
    token_delay_ms: float | None = None


class Policy:
    """A loaded policy function `reply(prompt: str, request: dict) -> str`, plain or async."""

    def __init__(self, function: PolicyFunction, spec: str | None = None) -> None:
        """Use `function`; `spec` is how messages call it."""
        self.spec = spec or getattr(function, "__qualname__", repr(function))
        self._function = function
        self._threads = ThreadPoolExecutor(max_workers=BLOCKING_POLICIES, thread_name_prefix="policy")

    @staticmethod
    def load(spec: str) -> Policy:
        """Import `scripted:MODULE:FUNCTION`; raises `PolicyError`."""
        module, _, name = spec.removeprefix(POLICY_SCHEME).partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except Exception as exc:  # importing runs the user's own code, which may raise anything
            raise PolicyError(
                f"policy {spec} can't be imported: {exc}; start the engine where `import {module}` works"
            ) from exc
        if not callable(function):
            raise PolicyError(f"policy {spec} is not a function")
        return Policy(function, spec)

    async def reply(self, prompt: str, request: dict[str, Any]) -> Scripted:
        """Ask for the reply to `prompt` (decoded, with special tokens); raises `PolicyError`."""
        try:
            if inspect.iscoroutinefunction(self._function):
                answer = await self._function(prompt, request)
            else:
                answer = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._function, prompt, request
                )
        except Exception as exc:  # a policy is a person's code: whatever it raises is its error
            raise PolicyError(f"policy {self.spec} raised {type(exc).__name__}: {exc}") from exc
        if isinstance(answer, str):
            return Scripted(answer)
        if isinstance(answer, Scripted):
            return answer
        raise PolicyError(f"policy {self.spec} returned {type(answer).__name__}, not a string")

    def close(self) -> None:
        """Let go of the threads; a policy that blocks still finishes its call."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def script_ids(text: str, tokenizer: Tokenizer, stop_ids: frozenset[int], max_new_tokens: int) -> list[int]:
    """Ids of a scripted reply: special tokens parsed, closed by the end-of-turn token, cut at `max_new_tokens`."""
    ids = tokenizer.encode(text)
    if tokenizer.eos_id is not None and (not ids or (ids[-1] not in stop_ids and ids[-1] != tokenizer.eos_id)):
        ids.append(tokenizer.eos_id)
    return ids[:max_new_tokens]
