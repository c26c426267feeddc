"""The marker of a slice: what it says is read again, and damage is never taken for an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.errors import SinkError
from dedup.sinks.marker import BATCH_SLOT, FORMAT, Marker, marker_key
from dedup.storage.document import to_document

MARKER = Marker(
    query_id="5b1e", sink="out", slot=3, batch_id=17, rows=2, content="0f" * 16, run_id="r",
    tasks=8, writer="host:1", time_ms=1_764_000_000_000,
)  # fmt: skip
WHERE = "markers-0, offset 12"
TEXT = st.text(max_size=8)


@given(
    st.builds(
        Marker,
        query_id=TEXT, sink=TEXT, slot=st.integers(BATCH_SLOT, 9), batch_id=st.integers(-1, 2**40),
        rows=st.integers(0, 2**40), content=TEXT, run_id=TEXT, tasks=st.none() | st.integers(1, 9),
        writer=TEXT, time_ms=st.integers(0, 2**42),
    )
)  # fmt: skip
def test_a_marker_is_read_as_it_was_written(marker: Marker) -> None:
    assert Marker.from_bytes(marker.to_bytes(), WHERE) == marker


@pytest.mark.parametrize(
    "key", [None, b"", b"\xff", b"[", b"[" * 200_000, b"[]", b"{}", b"1e400", b'["other"]', b"5"]
)
def test_a_foreign_key_in_the_topic_is_no_marker(key: bytes | None) -> None:
    pytest.importorskip("confluent_kafka")
    from dedup.sinks.kafka.markers import _is_marker

    assert not _is_marker(key)
    assert _is_marker(marker_key("q", "s", 1))


def test_no_byte_can_be_damaged_unnoticed() -> None:
    data = MARKER.to_bytes()
    for place in range(len(data)):
        for flip in (0x01, 0x20, 0xFF):
            damaged = bytearray(data)
            damaged[place] ^= flip
            with pytest.raises(SinkError, match=f"{WHERE}.*othing was written"):
                Marker.from_bytes(bytes(damaged), WHERE)


def test_a_marker_of_another_release_is_refused_by_that_name() -> None:
    data = to_document({"query_id": "q"}, version=FORMAT + 1)
    with pytest.raises(SinkError, match="written by another release") as error:
        Marker.from_bytes(data, WHERE)
    assert error.value.remedy == "other-version"


@pytest.mark.parametrize("fields", [{}, {"query_id": "q"}])
def test_a_marker_that_lacks_fields_is_damaged(fields: dict[str, str]) -> None:
    with pytest.raises(SinkError, match="it lacks batch_id") as error:
        Marker.from_bytes(to_document(fields, version=FORMAT), WHERE)
    assert error.value.remedy == "sink-markers"


def test_each_slot_has_its_own_marker_key() -> None:
    same = replace(MARKER, batch_id=18, rows=0, run_id="other", tasks=None)
    assert same.key() == MARKER.key() == marker_key("5b1e", "out", 3)
    keys = {marker_key(q, s, n) for q in ("a", "b") for s in ("a", "b") for n in (BATCH_SLOT, 0, 1)}
    assert len(keys) == 12
