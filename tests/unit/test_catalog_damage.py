from __future__ import annotations

import shutil

import numpy as np
import pyarrow.fs as pafs
import pytest

from dedup.catalog import view
from dedup.catalog.segment_file import RocksError
from dedup.catalog.store import ShardStore
from dedup.core.segment import SegmentRef
from dedup.errors import CatalogError, ConfigError, SegmentDamaged
from dedup.storage.root import Root
from dedup.tools.repair.segment_check import write_accepted_loss
from tests.support.catalog import (
    QUERY,
    Bench,
    Content,
    Forwarding,
    fixed,
    flip,
    knows,
    write,
    written,
)


def right_or_damaged(store: ShardStore, seg: SegmentRef, made: Content) -> bool:
    """True where the segment answers; anything but the right answer or SegmentDamaged fails."""
    try:
        assert store.lookup(seg, made.keys, made.hashes).tolist() == made.times_ms.tolist()
        entries = store.read_segment(seg)
        found = dict(zip(entries.keys, entries.times_ms.tolist(), strict=True))
        assert found == dict(zip(made.keys, made.times_ms.tolist(), strict=True))
    except SegmentDamaged as exc:
        if seg.name not in str(exc):
            raise
        return False
    return True


def test_the_error_names_segment_bucket_file_and_command(bench: Bench) -> None:
    made, seg = written(bench.store(), 100)
    bench.file(seg).unlink()
    with pytest.raises(SegmentDamaged) as caught:
        bench.store().lookup(seg, made.keys, made.hashes)
    text = str(caught.value)
    for part in (
        f"Segment {seg.name} of shard 0",
        "[2023-11-14T22:13:20.000Z, 2023-11-14T22:23:20.000Z)",
        str(bench.file(seg)),
        "file is missing",
        f"dedup catalog accept-loss {bench.path}/root --segment {seg.name}",
    ):
        assert part in text


def test_damage_under_an_open_view_never_changes_an_answer(bench: Bench) -> None:
    made, seg = written(bench.store(), 50_000)
    store = bench.store()
    store.lookup(seg, made.keys.take(np.arange(1)), made.hashes[:1])
    for at in range(5000, seg.sst_bytes - 5000, 40_000):
        flip(bench.file(seg), at)
    assert not right_or_damaged(store, seg, made)


def test_a_fetched_segment_must_match_the_manifests_checksum(bench: Bench) -> None:
    # RocksDB itself does not notice every flip, such as in a table's properties.
    root = bench.remote
    made, seg = written(bench.store(root=root), 500)
    bench.lose_cache()
    file = bench.path / "remote/bucket/catalog" / QUERY / "shard=00000" / f"{seg.name}.sst"
    for at in range(0, seg.sst_bytes, 97):
        flip(file, at)
        with pytest.raises(SegmentDamaged, match=r"CRC-32 \d+, the manifest says"):
            bench.store(root=root).lookup(seg, made.keys, made.hashes)
        flip(file, at)
    assert right_or_damaged(bench.store(root=root), seg, made)


def test_a_segment_of_another_shard_query_or_bucket_is_damage(bench: Bench) -> None:
    made, seg = written(bench.store(shard=0), 500)
    folder = bench.file(seg, shard=1).parent
    folder.mkdir()
    shutil.copy(bench.file(seg), folder)
    assert not right_or_damaged(bench.store(shard=1), seg, made)
    moved = SegmentRef.from_json([seg.name, seg.start_ms - 1, *seg.to_json()[2:]])
    assert not right_or_damaged(bench.store(), moved, made)
    more = SegmentRef.from_json([*seg.to_json()[:3], 501, *seg.to_json()[4:]])
    assert not right_or_damaged(bench.store(), more, made)


def test_a_full_local_disk_is_not_called_damage(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, seg = written(bench.store(), 100)

    def full(*_: object) -> None:
        raise RocksError("IO error: No space left on device")

    monkeypatch.setattr(view, "build_view", full)
    with pytest.raises(CatalogError, match=r"No space left.*another cache directory") as caught:
        bench.store().lookup(seg, made.keys, made.hashes)
    assert not isinstance(caught.value, SegmentDamaged)


def test_an_unreachable_root_is_not_called_damage(bench: Bench) -> None:
    made, seg = written(bench.store(), 100)

    def down(call: str) -> None:
        raise OSError("connection refused")

    local = pafs.SubTreeFileSystem(f"{bench.path}/root", pafs.LocalFileSystem())
    root = Root(lambda: (pafs.PyFileSystem(Forwarding(local, down)), "x"))
    for ask in (
        lambda: bench.store(root=root).lookup(seg, made.keys, made.hashes),
        lambda: bench.store(root=root).may_hold(seg, np.sort(made.hashes)),
        lambda: bench.store(root=root).loss_accepted(seg),
    ):
        with pytest.raises(CatalogError, match="connection refused") as caught:
            ask()
        assert not isinstance(caught.value, SegmentDamaged)
    # The state row can do without a filter.
    assert bench.store(root=root).read_filter(seg) is None


def test_a_filter_is_at_hand_once_a_lookup_has_fetched_its_sidecar(bench: Bench) -> None:
    made, seg = written(bench.store(root=bench.remote), 100)
    bench.lose_cache()
    store = bench.store(root=bench.remote)
    assert store.read_filter(seg) is None
    assert store.counters.bytes_fetched == 0
    assert knows(store, seg, made)
    assert store.read_filter(seg) is not None
    assert store.counters.bytes_fetched == seg.filter_bytes


# --- sidecars


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("harm", ["flip", "missing", "swap"])
def test_a_damaged_sidecar_is_rebuilt_locally_without_false_negatives(
    bench: Bench, harm: str, remote: bool
) -> None:
    root = bench.remote if remote else bench.root
    made, other = fixed(3000), fixed(3000, prefix="no")
    writer = bench.store(root=root)
    seg, seg2 = write(writer, made), write(writer, other)
    bench.lose_cache()
    top = bench.path / ("remote/bucket/catalog" if remote else "root")
    file, file2 = (top / QUERY / "shard=00000" / f"{s.name}.filter" for s in (seg, seg2))
    {
        "flip": lambda: flip(file, 1000),
        "missing": file.unlink,
        "swap": lambda: shutil.copy(file2, file),
    }[harm]()
    at_root = file.read_bytes() if file.exists() else None

    store = bench.store(root=root)
    assert store.read_filter(seg) is None, "the state row holds intact filters only"
    assert knows(store, seg, made)
    assert store.counters.filters_rebuilt == 1
    (rebuilt,) = bench.cache().folder.glob("*/*.rebuilt")
    assert rebuilt.stat().st_size == seg.filter_bytes + 4, "and whose it is"
    strange = fixed(20_000, prefix="strange")
    assert store.may_hold(seg, np.sort(strange.hashes)).mean() < 0.02
    assert store.counters.filters_rebuilt == 1
    assert (file.read_bytes() if file.exists() else None) == at_root

    again = bench.store(root=root)
    assert again.read_filter(seg) is None, "what was rebuilt is not what the manifest names"
    assert knows(again, seg, made)
    assert again.counters.filters_rebuilt == 0
    assert again.counters.bytes_fetched == 0, "what is damaged at the root is fetched once"


def test_a_sidecar_serves_while_only_the_segment_is_gone(bench: Bench) -> None:
    made, seg = written(bench.store(), 500)
    bench.file(seg).unlink()
    assert knows(bench.store(), seg, made)


# --- accepted losses


def test_a_loss_is_accepted_only_by_an_accepted_loss_file_of_the_shard(bench: Bench) -> None:
    seg = write(bench.store(), fixed(500))
    bench.root.put_bytes(f"{QUERY}/certificate.json", b"{}")
    assert not bench.store().loss_accepted(seg)
    written = write_accepted_loss(bench.root, QUERY, 0, seg.name)
    assert (written.start_ms, written.end_ms) == (seg.start_ms, seg.end_ms)
    assert bench.store().loss_accepted(seg)
    assert not bench.store(shard=1).loss_accepted(seg)


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_loss_can_be_accepted_even_if_the_segments_bucket_is_unknown(
    bench: Bench, harm: str
) -> None:
    seg = write(bench.store(), fixed(500))
    bench.root.put_bytes(f"{QUERY}/certificate.json", b"{}")
    if harm == "missing":
        bench.file(seg).unlink()
    else:
        bench.file(seg).write_bytes(b"?")
    assert write_accepted_loss(bench.root, QUERY, 0, seg.name).start_ms is None
    assert bench.store().loss_accepted(seg)


def test_accepting_a_loss_needs_a_catalog(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="holds no catalog of query"):
        write_accepted_loss(bench.root, QUERY, 0, "000000000007-run-1-0000")
