"""One model call inside the proxy: what is known at its start, and what its sampling brings in."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from capture_proxy.engines.base import Alternatives, EngineFinish
from capture_proxy.leases import Lease
from capture_proxy.lineage.index import Lineage
from capture_proxy.lineage.placing import Placed
from capture_proxy.rendering.base import ParsedReply, Renderer
from capture_proxy.reply import ChatRequest
from schemas.records import CompletionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request made ready for the engine: the whole prompt's ids, and the sampling that will be used.

    `placed` says where the call stands in `lineage`. While a lease's earlier calls are still being read back there are no ids yet:
    `later` waits for the prompt that takes this one's place.
    """

    renderer: Renderer
    ids: Sequence[int]
    sampling: dict[str, Any]
    policy_id: str = ""
    """Who answers, where that isn't the session's policy: no call of the session's is its parent, and it is nobody's."""
    notes: tuple[str, ...] = ()
    request: ChatRequest | None = None
    """The request that was rendered, where that isn't the client's: one that continues an earlier call is made whole."""
    placed: Placed | None = None
    lineage: Lineage | None = None
    later: Callable[[], Awaitable[Prompt]] | None = None

    def release(self) -> None:
        """Gives the parent free: the call came to nothing."""
        if self.lineage is not None and self.placed is not None:
            self.lineage.release(self.placed.parent_id)


@dataclass(eq=False, slots=True, kw_only=True)
class Call:
    """A started call. `stub` is its CallStarted; the rest fills while the engine samples."""

    completion_id: str
    call_seq: int
    lease: Lease
    request: ChatRequest
    prompt: Prompt
    stub: CompletionRecord
    arrived_s: float = field(default_factory=time.monotonic)

    engine_kind: str = ""
    engine_url: str = ""
    logprobs_mode: str = ""
    is_text_in: bool = False
    """The engine renders and parses by itself; `prompt.ids` are its own, once it told them."""
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[Alternatives] = field(default_factory=list)
    finish: EngineFinish | None = None
    parsed: ParsedReply | None = None
    accepted_s: float = 0.0
    first_token_s: float = 0.0
    response_bytes: int = 0
    notes: dict[str, Any] = field(default_factory=dict)
    """What else its record says, by name."""
    is_stream_begun: bool = False
    """The client has seen status 200; an error from here on travels inside the stream."""
    is_terminal_sent: bool = False
    """The terminal event was handed to the client's transport."""
    is_durable: bool = False
    """The record of its whole answer is."""
    delivery_reason: str = ""
    """What the fact says of a delivery that succeeded."""
    is_withheld: bool = False
    """The client was told an error in the reply's place, whatever the record says."""

    @property
    def is_delivered(self) -> bool:
        """The end that the record tells of was handed to the client's transport."""
        return self.is_terminal_sent and not self.is_withheld

    @property
    def session_id(self) -> str:
        """The lease's session."""
        return self.lease.session_id
