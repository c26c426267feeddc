"""Looking at a catalog from outside: what is in it, is it whole, and accepting a loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dedup import kernel
from dedup.catalog import layout
from dedup.catalog.accepted_loss import AcceptedLoss, accepted_loss_path
from dedup.catalog.blocks import block_numbers, ids_in_block
from dedup.catalog.certificate import load_certificate, no_catalog
from dedup.catalog.database import build_view, decode_all, open_view
from dedup.catalog.root import ObjectMissing, Root
from dedup.catalog.segment_file import META_KEY, RocksError, SegmentMeta
from dedup.core.arrays import I64, U64
from dedup.core.filter import SplitBlockFilter
from dedup.core.hash_ranges import range_indexes, spread_hashes
from dedup.core.keys import Keys
from dedup.core.parse import OtherVersion
from dedup.core.segment import SegmentRef
from dedup.core.sharding import derive_keys, filter_key_id
from dedup.errors import CatalogError, FilterDamaged


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What `verify_segment` found.

    Parameters
    ----------
    query_id, shard, segment
        What was verified.
    problems : tuple of str
        One sentence for each; none where all is good.
    count : int
        IDs read from the segment; 0 where it could not be read.
    start_ms, end_ms : int or None
        Its bucket, where the segment tells.
    sst_bytes, filter_bytes : int
        Sizes found; 0 where missing.
    """

    query_id: str
    shard: int
    segment: str
    problems: tuple[str, ...]
    count: int
    start_ms: int | None
    end_ms: int | None
    sst_bytes: int
    filter_bytes: int

    @property
    def ok(self) -> bool:
        """Whether segment and sidecar are whole and agree."""
        return not self.problems


def verify_segment(
    root: Root, query_id: str, shard: int, segment: str, seg: SegmentRef | None = None
) -> SegmentReport:
    """Read every block of a segment and its sidecar, and say all that is wrong with them.

    Checked are checksums, number, order and place of the IDs, their times, and that the sidecar
    lacks none of them.

    Parameters
    ----------
    root, query_id, shard, segment
        Which segment.
    seg : SegmentRef, optional
        What the manifest says of it. Without it, sizes and checksums of whole files, which only
        the manifest holds, are not compared.

    Raises
    ------
    CatalogError
        When the root cannot be reached, or the local disk fails; that says nothing about the
        segment.
    """
    name = layout.shard_path(query_id, shard, segment)
    problems: list[str] = []
    try:
        certificate = load_certificate(root, query_id)
        secret = b"" if certificate is None else certificate.secret
    except CatalogError as exc:
        if exc.remedy == "storage":
            raise
        secret = b""  # of a certificate that is damaged, which is reported by itself
    key_id = filter_key_id(query_id, secret)
    meta, hashes, sst_bytes, filter_bytes = None, None, 0, 0
    with TemporaryDirectory(prefix="dedup-verify-") as folder:
        try:
            copy = Path(folder, "segment")
            sst_bytes, crc = root.fetch(name + layout.SEGMENT_SUFFIX, copy)
            if seg is not None and (sst_bytes, crc) != (seg.sst_bytes, seg.sst_crc32):
                problems.append(
                    f"the segment has {sst_bytes} bytes and CRC-32 {crc}, the manifest says "
                    f"{seg.sst_bytes} and {seg.sst_crc32}"
                )
            meta, keys, times_ms, numbers = _read(copy)
            found = kernel.hash64(keys.data, keys.offsets, derive_keys(query_id, secret)[1])
            hashes = spread_hashes(found, meta.parts)
            wanted = seg or SegmentRef(
                segment, meta.start_ms, meta.end_ms, meta.count, 0, 0, 0, 0, meta.parts, meta.part
            )
            if meta.hash_key_id == f"{key_id:016x}":
                meta.check(wanted, shard=shard, hash_key_id=key_id)
                problems += _content_problems(wanted, meta, keys, found, times_ms, numbers)
            else:
                hashes = None
                problems.append(
                    "the segment was made with another hash key than the one in the query's "
                    "catalog.json: restore that file from a copy first, then verify again"
                )
        except ObjectMissing:
            problems.append("the segment is missing")
        except OtherVersion as exc:
            problems.append(f"the segment was written by another release: {exc}")
        except (RocksError, ValueError) as exc:
            problems.append(f"the segment is damaged: {exc}")
    try:
        sidecar = root.read_bytes(name + layout.SIDECAR_SUFFIX)
        filter_bytes = len(sidecar)
        problems += _sidecar_problems(key_id, sidecar, seg, hashes)
    except ObjectMissing:
        problems.append("the sidecar is missing")
    return SegmentReport(
        query_id,
        shard,
        segment,
        tuple(problems),
        0 if hashes is None else len(hashes),
        None if meta is None else meta.start_ms,
        None if meta is None else meta.end_ms,
        sst_bytes,
        filter_bytes,
    )


def accept_loss(root: Root, query_id: str, shard: int, segment: str) -> AcceptedLoss:
    """Accept the loss of a segment: write an object that the query reads when the segment fails.

    A segment that is whole stays in use. The bucket is noted where the segment still tells it.

    Parameters
    ----------
    root, query_id, shard, segment
        Which segment; it may be missing altogether.

    Raises
    ------
    ConfigError
        When there is no catalog of this query.
    CatalogError
        When the root cannot be read or written.
    """
    if not root.exists(layout.certificate_path(query_id)):
        raise no_catalog(root, query_id)
    accepted_loss = AcceptedLoss(segment, None, None)
    with TemporaryDirectory(prefix="dedup-accept-loss-") as folder:
        copy = Path(folder, "segment")
        with suppress(ObjectMissing, RocksError, ValueError):
            root.fetch(layout.shard_path(query_id, shard, segment + layout.SEGMENT_SUFFIX), copy)
            meta = _read_meta(copy)
            if meta.name == segment:
                accepted_loss = AcceptedLoss(segment, meta.start_ms, meta.end_ms)
    root.put_bytes(accepted_loss_path(query_id, shard, segment), accepted_loss.to_bytes())
    return accepted_loss


def _read_meta(copy: Path) -> SegmentMeta:
    build_view(copy, copy.with_name("view"))
    view = open_view(copy.with_name("view"))
    with closing(view):
        return view.meta


def _read(copy: Path) -> tuple[SegmentMeta, Keys, I64, I64]:
    """Return metadata, keys, times, and the number of the block that each key lies in."""
    build_view(copy, copy.with_name("view"))
    view = open_view(copy.with_name("view"))
    with closing(view):
        found = decode_all(view)
        entries = [(key, block) for key, block in view.db.items() if key != META_KEY]
        numbers = [int.from_bytes(key, "big") for key, _ in entries]
        counts = [ids_in_block(block) for _, block in entries]
        blocks = np.repeat(np.array(numbers, np.int64), counts)
        return view.meta, found.keys, found.times_ms, blocks


def _content_problems(
    seg: SegmentRef, meta: SegmentMeta, keys: Keys, hashes: U64, times_ms: I64, numbers: I64
) -> Iterator[str]:
    if len(keys) == 0:
        return
    outside = int((range_indexes(hashes, seg.hash_ranges) != seg.range_index).sum())
    if outside:
        yield f"{outside} IDs have hashes outside range {seg.range_index} of {seg.hash_ranges}"
    misplaced = int((block_numbers(seg.spread(hashes), meta.nblocks) != numbers).sum())
    if misplaced:
        yield f"{misplaced} IDs lie in blocks where a lookup does not find them"
    order = kernel.sort_keys(keys.data, keys.offsets, hashes)
    unsorted = int((order != np.arange(len(keys))).sum())
    if unsorted:
        yield f"{unsorted} IDs are not in (hash, key) order"
    if not meta.start_ms <= int(times_ms.min()) <= int(times_ms.max()) < meta.end_ms:
        yield f"times reach from {times_ms.min()} to {times_ms.max()}, outside the bucket"


def _sidecar_problems(
    key_id: int, sidecar: bytes, seg: SegmentRef | None, hashes: U64 | None
) -> Iterator[str]:
    if seg is not None and len(sidecar) != seg.filter_bytes:
        yield f"the sidecar has {len(sidecar)} bytes, the manifest says {seg.filter_bytes}"
    try:
        found = SplitBlockFilter.from_bytes(
            sidecar, hash_key_id=key_id, head_crc32=None if seg is None else seg.filter_crc32
        )
    except FilterDamaged as exc:
        yield f"the sidecar is damaged: {exc}"
        return
    if hashes is not None:
        lacking = int((~found.may_contain(hashes)).sum())
        if lacking or found.count != len(hashes):
            yield (
                f"the sidecar was made of {found.count} IDs and lacks {lacking} of the "
                f"segment's {len(hashes)}"
            )
