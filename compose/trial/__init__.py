"""Trying a harness: a task that asks for every kind of thing, a policy that knows how to do it, a session, and what went over the wire.

In: a harness' definition and a wire. Out: a verdict over one live session of a running stack (`trial`), or the summary of what the
harness sent to a model endpoint of our own (`recorder`). The scripted policy (`policy`, `script`) drives any harness by its own tools.
"""

from __future__ import annotations
