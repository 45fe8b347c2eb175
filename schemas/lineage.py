"""The words for how a call hangs on earlier ones: why a conversation begins, and why a parent can't be told.

The proxy writes them into `CompletionRecord.lineage_reason`; builders give them as the root reason of a trace.
"""

from __future__ import annotations

from typing import Final

SESSION_START: Final = "session_start"
"""The first call of a lease."""
RESAMPLED: Final = "resampled"
"""The same request as an earlier one, answered anew."""
NEW_CONVERSATION: Final = "new_conversation"
"""Nothing of it was said before in this lease."""
TOOLS_CHANGED: Final = "tools_changed"
"""An earlier conversation goes on under another list of tools, so the prompt's head is another."""
OPTIONS_CHANGED: Final = "options_changed"
"""An earlier conversation goes on under other template switches."""
RETOKENIZED: Final = "retokenized"
"""The same words in other tokens: the prompt was rendered from text."""
REWRITTEN: Final = "assistant_rewritten"
"""The history holds another answer than the one that was sampled."""
CONTEXT_REPLACED: Final = "context_replaced"
"""The same head (system prompt), another history: compaction, or an edited message."""
THINKING_REMOVED: Final = "history_thinking_removed"
"""The rendered history lacks the thinking that was sampled."""

SAME_CONVERSATION: Final = frozenset(
    {TOOLS_CHANGED, OPTIONS_CHANGED, RETOKENIZED, REWRITTEN, CONTEXT_REPLACED, THINKING_REMOVED}
)
"""Reasons after which the same conversation goes on in a new trace; the others begin something of their own."""

IDENTICAL_TWINS: Final = "identical_twins"
"""Several earlier calls gave this very answer, and nothing tells which one is continued."""
LINEAGE_GAP: Final = "lineage_gap"
"""Calls of a predecessor may be missing here, so the parent may be one of them."""
