"""Damage to anything that we write: the answer is right, or an error gives the remedy.

A seeded sample of each kind of damage; `make damage` does every flip and truncation of small files
and some thousand of large ones, and prints what came of them.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from dedup.catalog.backup import read_adopted
from dedup.core.state import ShardState
from dedup.errors import CatalogError
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
from tests.damage.harm import Harm, harms, some
from tests.damage.judge import Outcomes
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


def test_state_row(tmp_path: Path, size: str, outcomes: Outcomes, seed: int) -> None:
    world, stranger = worlds(tmp_path)
    data = world.states[0].to_bytes()
    # Another shard's row is as healthy: Spark's store goes by key, and the file test swaps keys.
    others = {"another version": data[:4] + b"\7" + data[5:], "a sidecar": sidecar(stranger)}
    rng = random.Random(seed)
    chosen = some(data, others, rng, 150) if size == "few" else harms(data, others, rng)
    for harm in chosen:
        if harm.data is not None:
            read = state_row_reader(world, lambda held=harm.data: held)
            outcomes.judge("state row", harm, harm.kind, read)
    outcomes.check()
    found = outcomes.of("state row")
    assert found["refused: StateError"] > 50
    assert found["left out"] > 50
    assert state_row_reader(world, lambda: data)() == "harmless"


def test_filters_of_another_shard_are_left_out(tmp_path: Path) -> None:
    """Rows that are whole but hold filters of other segments under their names."""
    world, stranger = worlds(tmp_path)
    state = world.states[0]
    for giver in (world.states[1], stranger.states[0]):
        lent = dict(zip(state.filters, giver.filters.values(), strict=True))
        row = replace(state, filters=lent).to_bytes()
        assert ShardState.from_bytes(row, hash_key_id=world.certificate.hash_key_id).filters == {}


def test_small_objects(tmp_path: Path, size: str, outcomes: Outcomes, seed: int) -> None:
    world, stranger = worlds(tmp_path)
    cases = object_cases(world, stranger)
    run(cases, outcomes, 40 if size == "few" else None, seed)
    for case in cases:
        found = outcomes.of(case.kind)
        assert found.total() - found["harmless"] > 100, case.kind
    assert outcomes.of("adopted.json")["left out"] == 0


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_segments_and_sidecars(
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


def test_local_views(tmp_path: Path, size: str, outcomes: Outcomes, seed: int) -> None:
    world, _ = worlds(tmp_path)
    cases = view_cases(world)
    assert len(cases) >= 4, [case.kind for case in cases]
    run(cases, outcomes, 2 if size == "few" else MANY // 6, seed)
    every = [outcomes.of(case.kind) for case in cases]
    assert sum(found["healed"] for found in every) > 10
    # The root is whole.
    assert not sum(found["refused: SegmentDamaged"] for found in every)


@pytest.mark.timeout(60, method="thread")
def test_a_view_that_rocksdb_would_read_for_ever(tmp_path: Path) -> None:
    """A record of its manifest that is of the type of recycled logs."""
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


def test_local_copies_of_sidecars(tmp_path: Path, size: str, outcomes: Outcomes, seed: int) -> None:
    per_kind = FEW if size == "few" else MANY // 2
    for make in (cached_sidecar_case, rebuilt_sidecar_case):
        world, _ = worlds(tmp_path / make.__name__, remote=True)
        case = make(world)
        run([case], outcomes, per_kind, seed)
        assert outcomes.of(case.kind)["healed"] > 5
        assert outcomes.of(case.kind)["refused: SegmentDamaged"] == 0


def test_a_rebuilt_sidecar_of_another_segment(tmp_path: Path) -> None:
    world, _ = worlds(tmp_path, remote=True)
    case = rebuilt_sidecar_case(world)
    case.path.write_bytes(rebuilt_of_a_sibling(tmp_path))
    case.read()


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
    path = world.file(f"{world.query_id}/shard=00000/manifest.json")
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
