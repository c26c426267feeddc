"""The state row: round trip, and damage that is either noticed or harmless."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dedup.core.state import CAPPED_VERSION, MAGIC, VERSION, ShardState
from dedup.errors import StateError
from tests.support.memory_store import KEY_ID
from tests.support.shard_driver import Driver, Rec, drive


def content(state: ShardState) -> dict[str, Any]:
    """All that a state says, comparable, without its filters."""
    return {
        "epoch": state.epoch,
        "bucket_ms": state.bucket_ms,
        "clocks": state.clocks,
        "manifest": state.manifest,
        "keys": list(state.tail.keys),
        "times": state.tail.times_ms.tolist(),
        "clamped": state.tail.clamped.tolist(),
        "segments_lost": state.segments_lost,
        "stray": state.stray_files,
        "began": state.run_began,
        "branches": state.branches,
    }


def filters(state: ShardState) -> dict[str, bytes]:
    return {name: piece.to_bytes() for name, piece in state.filters.items()}


def read(data: bytes) -> ShardState:
    return ShardState.from_bytes(data, hash_key_id=KEY_ID)


@pytest.fixture(scope="module")
def state() -> ShardState:
    """A small one with everything in it: three filters, expired segments, a tail, two sources."""
    driver: Driver = drive(state_budget_bytes=0, lateness_ms=40, retain_epochs=9)
    driver.feed([Rec(b"a", 5, "p"), Rec(b"b", 15, "q"), Rec(b"old", 1, "q")])
    driver.feed([Rec(b"c", 5, "p"), Rec(b"d", 115, "p"), Rec(b"e", 118, "q"), Rec(b"f", 125, "q")])
    driver.feed([Rec(b"g", 161, "p"), Rec(b"h", 162, "q")])
    driver.policy = replace(driver.policy, state_budget_bytes=1 << 20)
    driver.feed([Rec(b"tail", 171, "p"), Rec(b"", 20, "q")])
    made = driver.state
    kept = {
        segment.name: driver.store.filters[segment.name] for segment in made.manifest.segments()
    }
    assert len(kept) >= 3
    assert made.manifest.expired
    assert len(made.tail) == 2
    return replace(
        made, filters=kept, segments_lost=2, stray_files=(3, 4), run_began=5, branches=6,
        hash_key_id=KEY_ID,
    )  # fmt: skip


def test_a_state_row_is_read_back_as_written(state: ShardState) -> None:
    again = read(state.to_bytes())
    assert content(again) == content(state)
    assert filters(again) == filters(state)
    assert list(again.filters) == list(state.filters)
    assert again.to_bytes() == state.to_bytes()


def test_a_wrong_length_does_not_assign_a_filter_to_another_segment(state: ShardState) -> None:
    """Filters of another segment would answer "not seen"."""
    data = state.to_bytes()
    _, _, _, head_bytes, tail_bytes, _ = struct.unpack_from("<4sHHIII", data)
    at = 24 + head_bytes + tail_bytes
    one, two, *_ = [len(piece) for piece in filters(state).values()]
    skipping = data[:at] + struct.pack("<I", one + 4 + two) + data[at + 4 :]
    again = read(skipping)
    assert filters(again).items() <= filters(state).items()


def test_filters_of_another_hash_key_are_left_out(state: ShardState) -> None:
    named = replace(state, hash_key_id=KEY_ID ^ 1)
    again = ShardState.from_bytes(named.to_bytes(), hash_key_id=KEY_ID ^ 1)
    assert again.filters == {}
    assert content(again) == content(named)


def test_a_row_that_names_another_hash_key_is_refused(state: ShardState) -> None:
    data = state.to_bytes()
    assert read(data).hash_key_id == KEY_ID
    with pytest.raises(StateError, match="does not belong to this checkpoint"):
        ShardState.from_bytes(data, hash_key_id=KEY_ID ^ 1)


def test_filters_of_segments_that_the_manifest_does_not_name_are_dropped(state: ShardState) -> None:
    stranger = {"stranger": next(iter(state.filters.values())), **state.filters}
    assert filters(read(replace(state, filters=stranger).to_bytes())) == filters(state)


@pytest.mark.parametrize("version", [0, CAPPED_VERSION + 1, 0xFFFF])
def test_an_unknown_version_is_rejected(state: ShardState, version: int) -> None:
    data = state.to_bytes()
    header = data[:4] + struct.pack("<H", version) + data[6:20]
    with pytest.raises(StateError, match=f"format {version};.*reads format {CAPPED_VERSION}"):
        read(header + struct.pack("<I", zlib.crc32(header)) + data[24:])


@pytest.mark.parametrize("data", [b"", b"DD", MAGIC, MAGIC * 6, bytes(100), b"{}" * 50])
def test_bytes_that_are_not_a_state_row_are_rejected(data: bytes) -> None:
    with pytest.raises(StateError, match="Restore the checkpoint"):
        read(data)


def test_a_row_from_before_the_first_release_is_rejected() -> None:
    old = Path(__file__).parents[1] / "golden" / "before-0.1.0" / "state-0.bin"
    with pytest.raises(StateError, match=r"before 0\.1\.0.*or continue with commit") as caught:
        read(old.read_bytes())
    assert caught.value.remedy == "other-version"


def test_a_state_row_has_the_documented_layout(state: ShardState) -> None:
    data = state.to_bytes()
    magic, version, count, head_bytes, tail_bytes, crc = struct.unpack_from("<4sHHIII", data)
    assert (magic, version, count) == (MAGIC, VERSION, len(state.filters))
    assert struct.unpack_from("<I", data, 20)[0] == zlib.crc32(data[:20])
    body = data[24 : 24 + head_bytes + tail_bytes]
    assert crc == zlib.crc32(body)
    head = json.loads(zlib.decompress(body[:head_bytes]))
    assert head["filters"] == list(state.filters)
    assert body[head_bytes:] == state.tail.to_bytes()
    rest = data[24 + head_bytes + tail_bytes :]
    for piece in filters(state).values():
        assert rest[: 4 + len(piece)] == struct.pack("<I", len(piece)) + piece
        rest = rest[4 + len(piece) :]
    assert rest == b""
