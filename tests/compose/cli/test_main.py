"""What the outermost boundary of the command line makes of errors."""

from __future__ import annotations

from aiokafka.errors import KafkaConnectionError

from bus import TopicMissingError
from compose.cli.main import _outage
from compose.errors import ExitCode


def test_outages_have_their_own_exit_code_and_a_next_step() -> None:
    """A Kafka that is away, and one on which our topics aren't, also where they are the cause of another error."""
    wrapped = RuntimeError("while reading")
    wrapped.__cause__ = KafkaConnectionError("no broker")
    for error, hint in ((TopicMissingError("rollout.tasks"), "polynya topics"), (wrapped, "polynya up")):
        known = _outage(error)
        assert known is not None
        assert known.code is ExitCode.DEPENDENCY_DOWN
        assert hint in known.hint


def test_bugs_stay_bugs() -> None:
    """Their traceback is the only thing that helps."""
    assert _outage(KeyError("x")) is None
