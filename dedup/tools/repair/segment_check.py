"""Verify every block of a segment and its sidecar, and record that a loss is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dedup import kernel
from dedup.catalog import layout
from dedup.catalog.accepted_loss import AcceptedLoss, accepted_loss_path
from dedup.catalog.blocks import block_numbers, ids_in_block
from dedup.catalog.certificate import load_certificate, no_catalog
from dedup.catalog.database import View, build_view, decode_all, open_view
from dedup.catalog.segment_file import META_KEY, RocksError
from dedup.core.entries import Entries
from dedup.core.filter import SplitBlockFilter
from dedup.core.hash_ranges import range_indexes, spread_hashes
from dedup.core.segment import SegmentRef
from dedup.core.sharding import derive_keys, filter_key_id
from dedup.errors import CatalogError, FilterDamaged
from dedup.kernel.arrays import I64, U64
from dedup.storage.root import ObjectMissing, Root
from dedup.values.parse import OtherVersion


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """Problems of a segment as sentences, and the number of IDs read, or 0 if unreadable."""

    problems: tuple[str, ...]
    count: int

    @property
    def ok(self) -> bool:
        """Whether the segment and its sidecar are intact and hold the same IDs."""
        return not self.problems


def verify_segment(
    root: Root, query_id: str, shard: int, segment: str, ref: SegmentRef | None = None
) -> SegmentReport:
    """Read every block of a segment and its sidecar, and return all their problems.

    The function checks checksums, the number, order, blocks and times of the IDs, and that the
    sidecar contains every ID. If the manifest's entry `ref` is given, it also checks the sizes and
    checksums of whole files, which only the entry holds.

    Raises CatalogError if the storage cannot be reached or the local disk fails. This error does
    not mean that the segment is damaged.
    """
    name = layout.shard_path(query_id, shard, segment)
    secret = _secret(root, query_id)
    key_id = filter_key_id(query_id, secret)
    problems: list[str] = []
    hashes: U64 | None = None
    try:
        with TemporaryDirectory(prefix="dedup-verify-") as folder:
            copy = Path(folder, "segment")
            size, crc = root.fetch(name + layout.SEGMENT_SUFFIX, copy)
            if ref is not None and (size, crc) != (ref.sst_bytes, ref.sst_crc32):
                problems.append(
                    f"the segment has {size} bytes and CRC-32 {crc}, the manifest says "
                    f"{ref.sst_bytes} and {ref.sst_crc32}"
                )
            with _opened(copy) as view:
                meta, entries = view.meta, decode_all(view, derive_keys(query_id, secret)[1])
                numbers = _block_of_each(view)
        if meta.hash_key_id == f"{key_id:016x}":
            expected = ref or SegmentRef(
                segment, meta.start_ms, meta.end_ms, meta.count, 0, 0, 0, 0,
                meta.hash_ranges, meta.range_index,
            )  # fmt: skip
            hashes = spread_hashes(entries.hashes, meta.hash_ranges)
            meta.check(expected, shard=shard, hash_key_id=key_id)
            problems += _content_problems(expected, meta.nblocks, entries, numbers)
        else:
            problems.append(
                "the segment was made with another hash key than the one in the query's "
                "certificate.json: restore that file from a copy first, then verify again"
            )
    except ObjectMissing:
        problems.append("the segment is missing")
    except OtherVersion as exc:
        problems.append(f"the segment was written by another release: {exc}")
    except (RocksError, ValueError) as exc:
        problems.append(f"the segment is damaged: {exc}")
    try:
        sidecar = root.read_bytes(name + layout.SIDECAR_SUFFIX)
        problems += _sidecar_problems(key_id, sidecar, ref, hashes)
    except ObjectMissing:
        problems.append("the sidecar is missing")
    return SegmentReport(tuple(problems), 0 if hashes is None else len(hashes))


def write_accepted_loss(root: Root, query_id: str, shard: int, segment: str) -> AcceptedLoss:
    """Write the object that lets the query do without a segment, and return its contents.

    The query reads the object only if the segment fails, so an intact segment stays in use. The
    segment may be missing. If the segment is readable, the object names the segment's bucket.
    """
    if not root.exists(layout.certificate_path(query_id)):
        raise no_catalog(root, query_id)
    accepted = AcceptedLoss(segment, None, None)
    with TemporaryDirectory(prefix="dedup-accept-loss-") as folder:
        copy = Path(folder, "segment")
        with suppress(ObjectMissing, RocksError, ValueError):
            root.fetch(layout.shard_path(query_id, shard, segment + layout.SEGMENT_SUFFIX), copy)
            with _opened(copy) as view:
                if view.meta.name == segment:
                    accepted = AcceptedLoss(segment, view.meta.start_ms, view.meta.end_ms)
    root.put_bytes(accepted_loss_path(query_id, shard, segment), accepted.to_bytes())
    return accepted


def _secret(root: Root, query_id: str) -> bytes:
    try:
        certificate = load_certificate(root, query_id)
    except CatalogError as exc:
        if exc.remedy == "storage":
            raise
        return b""  # `verify` reports the damaged certificate separately
    return b"" if certificate is None else certificate.secret


@contextmanager
def _opened(copy: Path) -> Iterator[View]:
    build_view(copy, copy.with_name("view"))
    with closing(open_view(copy.with_name("view"))) as view:
        yield view


def _block_of_each(view: View) -> I64:
    """Return for each ID the number of its block."""
    blocks = [(key, block) for key, block in view.db.items() if key != META_KEY]
    numbers = [int.from_bytes(key, "big") for key, _ in blocks]
    return np.repeat(np.array(numbers, np.int64), [ids_in_block(block) for _, block in blocks])


def _content_problems(
    ref: SegmentRef, nblocks: int, entries: Entries, numbers: I64
) -> Iterator[str]:
    if len(entries) == 0:
        return
    keys, hashes, times_ms = entries.keys, entries.hashes, entries.times_ms
    outside = int((range_indexes(hashes, ref.hash_ranges) != ref.range_index).sum())
    if outside:
        yield f"{outside} IDs have hashes outside range {ref.range_index} of {ref.hash_ranges}"
    misplaced = int((block_numbers(ref.spread(hashes), nblocks) != numbers).sum())
    if misplaced:
        yield f"{misplaced} IDs are in blocks where a lookup does not find them"
    order = kernel.sort_keys(keys.data, keys.offsets, hashes)
    unsorted = int((order != np.arange(len(keys))).sum())
    if unsorted:
        yield f"{unsorted} IDs are not in (hash, key) order"
    if not ref.start_ms <= int(times_ms.min()) <= int(times_ms.max()) < ref.end_ms:
        yield f"times range from {times_ms.min()} to {times_ms.max()}, outside the bucket"


def _sidecar_problems(
    key_id: int, sidecar: bytes, ref: SegmentRef | None, hashes: U64 | None
) -> Iterator[str]:
    if ref is not None and len(sidecar) != ref.filter_bytes:
        yield f"the sidecar has {len(sidecar)} bytes, the manifest says {ref.filter_bytes}"
    try:
        parsed = SplitBlockFilter.from_bytes(
            sidecar, hash_key_id=key_id, head_crc32=None if ref is None else ref.filter_crc32
        )
    except FilterDamaged as exc:
        yield f"the sidecar is damaged: {exc}"
        return
    if hashes is not None:
        lacking = int((~parsed.may_contain(hashes)).sum())
        if lacking or parsed.count != len(hashes):
            yield (
                f"the sidecar was built from {parsed.count} IDs and lacks {lacking} of the "
                f"segment's {len(hashes)}"
            )
