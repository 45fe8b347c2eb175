"""Deterministic ids: stable for ever, distinct where they must be."""

from __future__ import annotations

import hashlib
import uuid

from hypothesis import given
from hypothesis import strategies as st

from schemas import ids

ROOT = uuid.UUID("6b1f3f0e-52a5-5d0c-9a3b-0f5b0c6c7a11")


def test_golden_values_never_change() -> None:
    """Ids written down once: a change here would orphan every record in every log."""
    group = ids.group_id("task-1")
    session = ids.session_id(group, 0)
    lease = ids.lease_id(session, 1)
    assert group == "aaba76ff-5f21-513d-abbc-daaa24c9a7bf"
    assert session == "390ec86f-cd3a-54cd-b50a-3df993443598"
    assert lease == "f7260dbb-f9c1-50aa-b719-d516d562b3b2"
    assert ids.completion_id(lease, 1, 1) == "53abe555-acf2-5023-9124-5e7458fb157f"
    assert ids.trajectory_id(session, lease, "prefix_merging") == "da3251b7-d551-579c-89d6-39c3645de3e2"
    assert ids.requeue_group_id(group, "trainer-a") == "5e516fdb-34ef-5fe2-9e9a-87b5bb1633fe"


def test_ids_are_plain_uuid5s() -> None:
    """Another language can derive them: uuid5 of one namespace and the parts joined by U+001F."""
    assert ids.group_id("täsk") == str(uuid.uuid5(ROOT, "group\x1ftäsk"))
    assert ids.session_id("g", 3) == str(uuid.uuid5(ROOT, "session\x1fg\x1f3"))
    assert ids.lease_id("s", 2) == str(uuid.uuid5(ROOT, "lease\x1fs\x1f2"))
    assert ids.completion_id("l", 1, 2) == str(uuid.uuid5(ROOT, "completion\x1fl\x1f1\x1f2"))
    assert ids.trajectory_id("s", "", "b", "{}") == str(uuid.uuid5(ROOT, "trajectory\x1fs\x1f\x1fb\x1f{}"))


def test_kinds_do_not_collide() -> None:
    """The same parts under another kind give another id."""
    derived = [ids.derive(kind, "x", 1) for kind in ("session", "lease", "completion")]
    assert len(set(derived)) == len(derived)


@given(st.text(st.characters()), st.integers(0, 100))
def test_any_task_id_has_an_id(task_id: str, index: int) -> None:
    """Also text with NUL and lone surrogates, twice the same."""
    first = ids.session_id(ids.group_id(task_id), index)
    assert first == ids.session_id(ids.group_id(task_id), index)
    assert uuid.UUID(first).version == 5


def test_a_secret_leaves_only_as_its_hash() -> None:
    """The hash is plain SHA-256, so the proxy can compute it from what a harness sends."""
    assert ids.secret_hash("s3cret") == hashlib.sha256(b"s3cret").hexdigest()
    assert ids.digest(b"abc") == hashlib.sha256(b"abc").hexdigest()
