"""The client defaults that keep data safe."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from bus.settings import CLAIM_CHECK_BYTES, MAX_FETCH_BYTES, MAX_RECORD_BYTES, BusSettings


def test_nothing_is_committed_by_itself():
    """Lanes and readers decide about offsets, not the client."""
    options = BusSettings().consumer_options("worker")
    assert (options["enable_auto_commit"], options["auto_offset_reset"]) == (False, "earliest")
    assert BusSettings().reader_options()["auto_offset_reset"] == "none"


def test_an_acknowledgement_means_every_replica():
    """The producer is idempotent and waits for all in-sync replicas."""
    options = BusSettings().producer_options()
    assert (options["acks"], options["enable_idempotence"], options["compression_type"]) == ("all", True, "zstd")


def test_every_record_that_can_be_written_can_be_read():
    """Sizes fit: claim check < largest record < largest fetch."""
    assert CLAIM_CHECK_BYTES < MAX_RECORD_BYTES < MAX_FETCH_BYTES
    assert (
        BusSettings().producer_options()["max_request_size"]
        <= BusSettings().reader_options()["max_partition_fetch_bytes"]
    )


def test_the_prefix_is_put_on_and_taken_off():
    """Topics and groups of tenants never meet."""
    settings = BusSettings(topic_prefix="blue.")
    assert settings.physical("rollout.tasks") == "blue.rollout.tasks"
    assert settings.logical("blue.rollout.tasks") == "rollout.tasks"
    assert settings.consumer_options("worker")["group_id"] == "blue.worker"


@pytest.mark.parametrize("wrong", [{"topic_prefix": "a/b"}, {"topic_prefx": "x"}, {"publish_deadline_s": 0}])
def test_wrong_settings_are_refused(wrong):
    """A prefix that Kafka can't spell, an unknown field, a deadline that can't be met."""
    with pytest.raises(ValidationError):
        BusSettings(**wrong)


def test_sasl_needs_a_user():
    """A protocol with a password needs one, and it isn't shown."""
    with pytest.raises(ValidationError, match="sasl_username"):
        BusSettings(security_protocol="SASL_SSL")
    settings = BusSettings(security_protocol="SASL_SSL", sasl_username="me", sasl_password="hush")
    assert "hush" not in repr(settings)
    assert settings.client_options()["sasl_plain_password"] == "hush"
    assert settings.client_options()["ssl_context"] is not None
