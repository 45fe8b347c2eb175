"""What keeps a writer from pushing a policy's weights. Each says what happened, where, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping

from trainer_sink.errors import SinkError


class PolicyError(SinkError):
    """Root of a policy writer's errors."""


class SupersededError(PolicyError):
    """Another trainer has claimed the policy since: this one may never push again.

    `by` and `epoch` say who took over; `version` and `reached` name the push that was found out too late and the engines that have
    its weights: they serve a version that was never published until the new owner pushes or calls `sync`.
    """

    def __init__(self, message: str, *, by: str, epoch: int, version: str = "", reached: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.by = by
        self.epoch = epoch
        self.version = version
        self.reached = reached


class EnginesUnfitError(PolicyError):
    """The policy has no engines, or some that can't be pushed to: of another kind, or shared with another policy."""


class PushFailedError(PolicyError):
    """Engines didn't take a version; `failed` says why by URL, `done` which ones have it. Push the same checkpoint again.

    Nothing was published: a version is published when every engine has it. The same checkpoint keeps its number, and goes to the
    engines that lack it only.
    """

    is_retriable = True

    def __init__(self, message: str, *, version: str, failed: Mapping[str, str], done: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.version = version
        self.failed = dict(failed)
        self.done = done
