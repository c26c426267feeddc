"""The manifest: what is live, what is on its way out, and when it may be deleted."""

from __future__ import annotations

import pytest

from dedup.core.manifest import Expired, Manifest, PendingList
from dedup.core.segment import SegmentRef


def ref(name: str, start_ms: int = 0, end_ms: int = 10, count: int = 1) -> SegmentRef:
    return SegmentRef(name, start_ms, end_ms, count, 100, 1, 64, 2)


def names(manifest: Manifest) -> list[str]:
    return [segment.name for segment in manifest.segments()]


def grown(manifest: Manifest, segment: SegmentRef, *, clamped: bool = False) -> Manifest:
    bucket = manifest.bucket(segment.start_ms, segment.end_ms)
    return manifest.with_bucket(bucket.adding((segment,), clamped=clamped))


@pytest.fixture
def manifest() -> Manifest:
    """Buckets [0, 10) with a and b, [10, 20) with c and clamped, [20, 30) with d."""
    made = grown(Manifest(), ref("d", 20, 30))
    made = grown(made, ref("a"))
    made = grown(made, ref("c", 10, 20), clamped=True)
    return grown(made, ref("b", count=3))


def test_buckets_are_in_order_of_time(manifest: Manifest) -> None:
    assert [b.range for b in manifest.buckets] == [(0, 10), (10, 20), (20, 30)]
    assert names(manifest) == ["a", "b", "c", "d"]
    assert (manifest.ids, manifest.live_bytes()) == (6, (4 * 100, 4 * 64))
    assert manifest.buckets[0].ids == 4


def test_buckets_of_two_grids_are_kept_apart(manifest: Manifest) -> None:
    other = grown(manifest, ref("w", 0, 20))
    assert [b.range for b in other.buckets] == [(0, 10), (0, 20), (10, 20), (20, 30)]


def merge_first(manifest: Manifest) -> Manifest:
    """The manifest with the segments of its first bucket merged into one, m."""
    bucket = manifest.buckets[0].beginning(manifest.buckets[0].runs, 1)
    bucket, _, gone = bucket.advancing(bucket.merges[0], ref("m", count=4))
    return manifest.with_bucket(bucket).expiring(gone, epoch=4, now_ms=99)


def test_merged_segments_become_pending_deletions(manifest: Manifest) -> None:
    merged = merge_first(manifest)
    assert names(merged) == ["m", "c", "d"]
    assert merged.expired == (Expired("a", 4, 99), Expired("b", 4, 99))
    assert merged.names() == {"a", "b", "c", "d", "m"}


def test_a_bucket_expires_once_the_watermark_reaches_its_end(manifest: Manifest) -> None:
    def expire(gc_ms: int, unclamped_ms: int) -> list[str]:
        expired = manifest.expire(
            gc_watermark_ms=gc_ms, unclamped_ms=unclamped_ms, epoch=7, now_ms=50
        )
        gone = [e.name for e in expired.expired]
        assert sorted(gone + names(expired)) == ["a", "b", "c", "d"]
        assert all((e.epoch, e.since_ms) == (7, 50) for e in expired.expired)
        return gone

    assert expire(9, 9) == []
    assert expire(10, 10) == ["a", "b"]
    assert expire(30, 30) == ["a", "b", "c", "d"]
    # Buckets with clamped IDs wait for the GC watermark.
    assert expire(19, 30) == ["a", "b", "d"]
    assert expire(20, 20) == ["a", "b", "c"]


def test_expired_segments_are_deleted_only_after_both_epochs_and_time(manifest: Manifest) -> None:
    expired = manifest.expire(gc_watermark_ms=10, unclamped_ms=10, epoch=7, now_ms=1_000)

    def deletable(epoch: int, now_ms: int) -> list[str]:
        waiting = {"epoch": epoch, "now_ms": now_ms, "retain_epochs": 5, "keep_ms": 100}
        names, pending_lists = expired.deletable(**waiting)
        assert pending_lists == []
        spilled = expired.spilling("pending_list", 2).deletable(**waiting)
        assert spilled == ([], [PendingList("pending_list", 2, 7, 1_000)] if names else [])
        return names

    assert deletable(12, 1_100) == []
    assert deletable(13, 1_099) == []
    assert deletable(13, 1_100) == ["a", "b"]
    assert deletable(13, 0) == []
    assert expired.without_pending(["a"]).expired == (Expired("b", 7, 1_000),)
    assert expired.spilling("pending_list", 2).without_pending(["pending_list"]).pending == 0
    one = expired.spilling("pending_list", 1)
    assert (one.expired, one.pending) == (expired.expired[1:], 2)


def test_a_lost_segment_leaves_the_manifest_without_becoming_pending(manifest: Manifest) -> None:
    one = manifest.without(ref("a"))
    assert names(one) == ["b", "c", "d"]
    assert one.expired == ()
    assert [b.range for b in one.without(ref("b")).buckets] == [(10, 20), (20, 30)]
    assert one.without(ref("unknown")) == one


@pytest.mark.parametrize(
    "fields",
    [["a", 0, 10, 1, 1, 1, 1, 1, 1], ["a", 0, 10, 1, 1, 1, 1, 1, 1, 0, 0],
     ["", 0, 10, 1, 1, 1, 1, 1, 1, 0], [1, 0, 10, 1, 1, 1, 1, 1, 1, 0],
     ["a", 10, 10, 1, 1, 1, 1, 1, 1, 0], ["a", 0, 10, -1, 1, 1, 1, 1, 1, 0],
     ["a", 0, 10, 1.0, 1, 1, 1, 1, 1, 0], ["a", 0, 10, True, 1, 1, 1, 1, 1, 0],
     ["a", 0, 10, 1, 1, 1, 1, 1, 1, 1], ["a", 0, 10, 1, 1, 1, 1, 1, 3, 0],
     ["a", 0, 10, 1, 1, 1, 1, 1, 1 << 17, 0], ["a", 0, 10, 1, 1, 1, 1, 1, 0, 0],
     ["a", 10, 0, 1, 1, 1, 1, 1, 1, 0], ["a", 0, 10, "1", 1, 1, 1, 1, 1, 0]],
)  # fmt: skip
def test_invalid_fields_of_a_segment_are_rejected(fields: list[object]) -> None:
    with pytest.raises(ValueError, match=r"is not|there is no range"):
        SegmentRef.from_json(fields)
