"""Damage to anything that we write: the answer is right, or an error gives the remedy.

A seeded sample of each kind of damage; `make damage` does every flip and truncation of small files
and some thousand of large ones, and prints what came of them.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dedup.catalog.backup import read_adopted
from dedup.catalog.layout import shard_path
from dedup.core import state_row
from dedup.core.state import ShardState
from dedup.errors import CatalogError, StateError
from dedup.tools.repair.adopt import adopt
from tests.damage.cases import (
    Case,
    cached_sidecar_case,
    harmed,
    need,
    object_cases,
    rebuilt_sidecar_case,
    segment_cases,
    state_row_reader,
    view_cases,
    worlds,
)
from tests.damage.harm import Harm, Outcomes, some
from tests.damage.world import World

#: Cases of each kind of damage: in `make test`; and in `make damage`, for what takes RocksDB.
FEW, MANY = 3, 500
SIZES = [
    pytest.param("few"),
    pytest.param("many", marks=[pytest.mark.slow, pytest.mark.timeout(1500)]),
]


def run(cases: list[Case], outcomes: Outcomes, per_kind: int | None, seed: int) -> None:
    rng = random.Random(seed)
    for case in cases:
        case.run(outcomes, rng, per_kind)
    outcomes.check()


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_damage_to_a_state_row_is_refused_or_does_no_harm(
    tmp_path: Path, size: str, outcomes: Outcomes, seed: int
) -> None:
    world, stranger = worlds(tmp_path)
    data = world.states[0].to_bytes()
    # Another shard's row is as healthy: Spark's store goes by key, and the file test swaps keys.
    others = {"another version": data[:4] + b"\7" + data[5:], "a sidecar": sidecar(stranger)}
    rng = random.Random(seed)
    for harm in some(data, others, rng, 150 if size == "few" else None):
        if harm.data is not None:
            read = state_row_reader(world, lambda held=harm.data: held)
            outcomes.judge("state row", harm, read)
    outcomes.check()
    found = outcomes.of("state row")
    assert found["refused: StateError"] > 50
    assert found["left out"] > 50
    assert state_row_reader(world, lambda: data)() == "harmless"


def test_filters_of_another_shard_are_ignored(tmp_path: Path) -> None:
    """The rows are intact, but hold filters of other segments under the names of their own."""
    world, stranger = worlds(tmp_path)
    state = world.states[0]
    for giver in (world.states[1], stranger.states[0]):
        lent = dict(zip(state.filters, giver.filters.values(), strict=True))
        row = replace(state, filters=lent).to_bytes()
        assert ShardState.from_bytes(row, hash_key_id=world.certificate.hash_key_id).filters == {}


def test_damage_to_small_objects_is_refused_or_does_no_harm(
    tmp_path: Path, size: str, outcomes: Outcomes, seed: int
) -> None:
    world, stranger = worlds(tmp_path)
    cases = object_cases(world, stranger)
    run(cases, outcomes, 40 if size == "few" else None, seed)
    for case in cases:
        found = outcomes.of(case.kind)
        assert found.total() - found["harmless"] > 100, case.kind
    assert outcomes.of("adopted.json")["left out"] == 0


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_a_damaged_segment_is_refused_and_a_damaged_sidecar_is_rebuilt(
    tmp_path: Path, size: str, remote: bool, outcomes: Outcomes, seed: int
) -> None:
    world, stranger = worlds(tmp_path, remote=remote)
    cases = segment_cases(world, stranger)
    run(cases, outcomes, FEW if size == "few" else MANY, seed)
    segment, sidecar_ = (outcomes.of(case.kind) for case in cases)
    assert segment["refused: SegmentDamaged"] > 10
    assert sidecar_["healed"] > 10
    assert sidecar_["refused: SegmentDamaged"] == 0
    if remote:  # fetched files have the checksum of the manifest
        assert segment["harmless"] == 0


def test_a_damaged_local_view_is_rebuilt(
    tmp_path: Path, size: str, outcomes: Outcomes, seed: int
) -> None:
    world, _ = worlds(tmp_path)
    cases = view_cases(world)
    assert len(cases) >= 4, [case.kind for case in cases]
    run(cases, outcomes, 2 if size == "few" else MANY // 6, seed)
    every = [outcomes.of(case.kind) for case in cases]
    assert sum(found["healed"] for found in every) > 10
    # The root is whole.
    assert not sum(found["refused: SegmentDamaged"] for found in every)


@pytest.mark.timeout(60, method="thread")
def test_a_view_that_rocksdb_would_read_for_ever_is_rebuilt(tmp_path: Path) -> None:
    """A record of the view's manifest gets the type of recycled logs."""
    world, _ = worlds(tmp_path)
    cases = {case.kind: case for case in view_cases(world)}
    case = cases["local view: MANIFEST"]
    data = case.path.read_bytes()
    # Types of whole records follow checksum and length.
    places = [at for at in range(6, len(data)) if data[at] == 1]
    assert len(places) > 3
    for at in places:
        harm = Harm("flipped byte", f"type at {at}", data[:at] + b"\5" + data[at + 1 :])
        with harmed(case.path, harm):
            assert case.read() == "healed"


def test_a_damaged_local_copy_of_a_sidecar_is_replaced(
    tmp_path: Path, size: str, outcomes: Outcomes, seed: int
) -> None:
    per_kind = FEW if size == "few" else MANY // 2
    for make in (cached_sidecar_case, rebuilt_sidecar_case):
        world, _ = worlds(tmp_path / make.__name__, remote=True)
        case = make(world)
        run([case], outcomes, per_kind, seed)
        assert outcomes.of(case.kind)["healed"] > 5
        assert outcomes.of(case.kind)["refused: SegmentDamaged"] == 0


def test_a_rebuilt_sidecar_of_another_segment_does_no_harm(tmp_path: Path) -> None:
    world, _ = worlds(tmp_path, remote=True)
    case = rebuilt_sidecar_case(world)
    own = case.path.read_bytes()
    case.path.write_bytes(rebuilt_of_a_sibling(tmp_path))
    assert case.path.read_bytes() != own
    assert case.read() == "healed"
    assert case.path.read_bytes() == own


def rebuilt_of_a_sibling(tmp_path: Path) -> bytes:
    world, _ = worlds(tmp_path / "twin", remote=True)
    (own, twin) = world.states[0].manifest.buckets
    world.states[0] = replace(
        world.states[0], manifest=replace(world.states[0].manifest, buckets=(twin, own))
    )
    return rebuilt_sidecar_case(world).path.read_bytes()


def sidecar(world: World) -> bytes:
    return world.file(world.segment_path(0, 0, ".filter")).read_bytes()


@pytest.mark.parametrize("harm", ["flipped", "removed"])
def test_adopt_does_not_forget_a_shard_whose_copy_is_damaged(tmp_path: Path, harm: str) -> None:
    world, _ = worlds(tmp_path)
    path = world.file(f"{world.query_id}/shard=00000/backup.json")
    data = path.read_bytes()
    path.unlink()
    if harm == "flipped":
        path.write_bytes(data.replace(b'"epoch":9', b'"epoch":8'))
        assert path.read_bytes() != data
    try:
        adopt(world.root, tmp_path / "checkpoint", world.query_id)
    except CatalogError:
        return
    found = read_adopted(world.root, world.query_id, 0)
    need(found is not None and found.manifest.ids > 0, "a shard with segments begins with nothing")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def row(world: World, head: bytes, tail: bytes | None = None) -> bytes:
    tail = world.states[0].tail.to_bytes() if tail is None else tail
    header = struct.pack(
        "<4sHHIII", b"DDID", 1, 0, len(head), len(tail), zlib.crc32(tail, zlib.crc32(head))
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
    "True is not an integer": lambda head: head.update(segments_lost=True),
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
def test_a_head_that_the_package_never_writes_is_refused(world: World, said: str) -> None:
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
def test_an_invalid_compressed_head_is_refused(world: World, head: bytes, said: str) -> None:
    with pytest.raises(StateError, match=said):
        read(world, row(world, head))


def test_a_head_that_would_fill_the_memory_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = zlib.compress(b" " * (1 << 20) + b"{}", 9)
    with pytest.raises(StateError, match="lacks"):
        read(world, row(world, head))
    monkeypatch.setattr(state_row, "_MAX_HEAD_BYTES", 1 << 20)
    with pytest.raises(StateError, match="too long"):
        read(world, row(world, head))


@pytest.mark.parametrize("tail", [b"", bytes(15), bytes(17), struct.pack("<QQ", 1 << 60, 5)])
def test_an_invalid_tail_is_refused(world: World, tail: bytes) -> None:
    head = zlib.compress(json.dumps(world.states[0].head()).encode())
    with pytest.raises(StateError, match="tail"):
        read(world, row(world, head, tail))


def test_an_adopted_manifest_of_another_shard_is_refused(world: World) -> None:
    """Another shard's filter would answer "not seen" for all IDs of this shard."""
    paths = [world.file(shard_path(world.query_id, n, "adopted.json")) for n in (0, 1)]
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(CatalogError, match=r"it belongs to shard 1.*adopt or rebuild again"):
        read_adopted(world.root, world.query_id, 0)
    paths[0].unlink()
    with pytest.raises(CatalogError, match="other shards of this query have one"):
        read_adopted(world.root, world.query_id, 0)
    paths[1].unlink()
    assert read_adopted(world.root, world.query_id, 0) is None
