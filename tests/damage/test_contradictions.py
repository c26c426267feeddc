"""Good checksums over content that no one writes: refused by name, not half believed."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dedup.catalog.backup import read_adopted
from dedup.catalog.layout import shard_path
from dedup.core import state_row
from dedup.core.state import ShardState
from dedup.errors import CatalogError, StateError
from tests.damage.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def row(world: World, head: bytes, tail: bytes | None = None) -> bytes:
    tail = world.states[0].tail.to_bytes() if tail is None else tail
    header = struct.pack(
        "<4sHHIII", b"DDST", 3, 0, len(head), len(tail), zlib.crc32(tail, zlib.crc32(head))
    )
    return header + struct.pack("<I", zlib.crc32(header)) + head + tail


def read(world: World, data: bytes) -> ShardState:
    return ShardState.from_bytes(data, hash_key_id=world.certificate.hash_key_id)


def bucket(head: dict[str, Any]) -> list[Any]:
    first: list[Any] = head["manifest"]["buckets"][0]
    return first


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "unknown field 'later'": lambda head: head.update(later=1),
    "lacks epoch": lambda head: head.pop("epoch"),
    "1.0 is not an integer": lambda head: head.update(epoch=1.0),
    "True is not an integer": lambda head: head.update(forgotten=True),
    "None is not a list": lambda head: head["manifest"].update(buckets=None),
    "is not a list of 5": lambda head: bucket(head).pop(),
    "is not a bucket": lambda head: bucket(head).__setitem__(1, bucket(head)[0]),
    "is outside bucket": lambda head: bucket(head).__setitem__(1, bucket(head)[1] + 1),
    "there is no range 0 of 3": lambda head: bucket(head)[3][0][0].__setitem__(8, 3),
    "there is no range 2 of 2": lambda head: bucket(head)[4].append([[], 2, 2, []]),
    "a list of 3": lambda head: head["manifest"]["expired"][0].append(1),
    "is not a list of 4": lambda head: head["clocks"]["sources"]["p"].append(1),
    "NaN is not a number": lambda head: head["clocks"].update(now_ms=float("nan")),
    "holds IDs, but buckets have no length": lambda head: head.update(bucket_ms=0),
    "is not an integer": lambda head: head["clocks"].update(newest_ms=1 << 63),
}


@pytest.mark.parametrize("said", CHANGES)
def test_a_head_that_nobody_writes(world: World, said: str) -> None:
    head = world.states[0].head()
    before = json.dumps(head)
    CHANGES[said](head)
    assert json.dumps(head) != before
    with pytest.raises(StateError) as caught:
        read(world, row(world, zlib.compress(json.dumps(head).encode())))
    assert said in str(caught.value)
    assert "restore the checkpoint" in str(caught.value).lower()


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"", "cut short"),
        (zlib.compress(b"{}") + b"x", "followed by"),
        (zlib.compress(b"{}")[:-1], "cut short"),
        (b"x" * 20, "Error -3"),
        (zlib.compress(b"[" * 100_000), "nested too deeply"),
        (zlib.compress(b'{"epoch":1,"epoch":2}'), "occurs twice"),
        (zlib.compress(b"\xff\xfe"), "contradicts itself"),
    ],
)
def test_a_compressed_head_that_is_none(world: World, head: bytes, said: str) -> None:
    with pytest.raises(StateError, match=said):
        read(world, row(world, head))


def test_a_head_that_would_fill_the_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    head = zlib.compress(b" " * (1 << 20) + b"{}", 9)
    with pytest.raises(StateError, match="lacks"):
        read(world, row(world, head))
    monkeypatch.setattr(state_row, "_MAX_HEAD_BYTES", 1 << 20)
    with pytest.raises(StateError, match="too long"):
        read(world, row(world, head))


@pytest.mark.parametrize("tail", [b"", bytes(15), bytes(17), struct.pack("<QQ", 1 << 60, 5)])
def test_a_tail_that_is_none(world: World, tail: bytes) -> None:
    head = zlib.compress(json.dumps(world.states[0].head()).encode())
    with pytest.raises(StateError, match="tail"):
        read(world, row(world, head, tail))


def test_what_is_adopted_belongs_to_one_shard(world: World) -> None:
    """Another shard's filter would answer "not seen" for all IDs of this shard."""
    paths = [world.file(shard_path(world.query_id, n, "adopted.json")) for n in (0, 1)]
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(CatalogError, match=r"it belongs to shard 1.*adopt again"):
        read_adopted(world.root, world.query_id, 0)
    paths[0].unlink()
    with pytest.raises(CatalogError, match="other shards of this query have one"):
        read_adopted(world.root, world.query_id, 0)
    paths[1].unlink()
    assert read_adopted(world.root, world.query_id, 0) is None
