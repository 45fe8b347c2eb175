"""What every record shares: its wire name, its topic, its key and its deterministic event id."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from schemas import ids, json_text

# A field of open shape: plain Python values here, one canonical JSON string on the wire.
Json = Annotated[Any, "json"]
# The same in a class that `ReadsLate`: parsed when it is asked for, which a trainer that wants tokens never does.
LateJson = Annotated[Any, "json", "late"]

# Token arrays; the annotation names the dtype, see schemas.arrays.
IdBytes = Annotated[bytes, "little-endian int32 token ids, shape (n,)"]
LogprobBytes = Annotated[bytes, "little-endian float32 natural-log probabilities, shape (n,)"]
MaskBytes = Annotated[bytes, "uint8 loss mask of 0 and 1, shape (n,)"]

NO_LEASE: Final = ""


class Record:
    """Base of the records that travel as values of a topic.

    Subclasses are frozen, slotted, keyword-only dataclasses whose every field has a default, so that schemas stay
    compatible in both directions.
    """

    __slots__ = ()

    NAME: ClassVar[str]
    TOPIC: ClassVar[str]

    @property
    def topic(self) -> str:
        """The logical topic (without the tenant's prefix) that this record belongs to."""
        return self.TOPIC

    @property
    def key(self) -> str:
        """The record's key, which decides its partition."""
        raise TypeError(f"{type(self).__name__} doesn't define its key")

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes this fact the same fact when it is published again."""
        raise TypeError(f"{type(self).__name__} doesn't define its identity")

    @property
    def event_id(self) -> str:
        """The CloudEvents id: a uuid5 of the record's kind and identity, the key for de-duplication."""
        return ids.derive(f"event:{self.NAME}", *self.identity)


class ReadsLate:
    """A decoded object whose `LateJson` fields are parsed at the first look at them.

    That look raises JsonTextError when what a foreign writer put there isn't JSON.
    """

    UNREAD: ClassVar[str] = "_unread"
    """Where an object's `__dict__` keeps the texts, by field."""

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Only called for what the object hasn't got (yet)."""
            texts = self.__dict__.get(ReadsLate.UNREAD, {})
            if name not in texts:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            # Of two threads that look at once the first one's value stays, for both.
            return self.__dict__.setdefault(name, json_text.load(texts[name]))


class WireEnum(StrEnum):
    """An enum on the wire: an unknown symbol of a newer writer reads as UNKNOWN."""


class Dialect(WireEnum):
    """The vendor API that a harness speaks."""

    UNKNOWN = "UNKNOWN"
    OPENAI_CHAT = "openai_chat"
    ANTHROPIC = "anthropic"
    OPENAI_RESPONSES = "openai_responses"
    GOOGLE = "google"


class Stage(WireEnum):
    """Where a session stands."""

    UNKNOWN = "UNKNOWN"
    QUEUED = "queued"
    INIT = "init"
    READY = "ready"
    RUNNING = "running"
    SEALED = "sealed"
    POSTRUN = "postrun"
    ENDED = "ended"


class Status(WireEnum):
    """How a session, a run or a grading ended."""

    UNKNOWN = "UNKNOWN"
    NONE = "none"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class Boundary(WireEnum):
    """The one part to which a failure is attributed."""

    UNKNOWN = "UNKNOWN"
    NONE = "none"
    PROVIDER = "provider"
    HARNESS = "harness"
    SANDBOX = "sandbox"
    EVALUATOR = "evaluator"
