"""When a record ID was seen, where it is kept, and until when it is remembered."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from dedup import kernel
from dedup.catalog.backup import read_backup
from dedup.catalog.cache import LocalCache
from dedup.catalog.certificate import Certificate, certificate_of
from dedup.catalog.open_views import OpenViews
from dedup.catalog.root import Root
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.core.clocks import known_ms
from dedup.core.duration import iso
from dedup.core.keys import Keys
from dedup.core.lookup import read_unless_lost
from dedup.core.ports import ABSENT_MS
from dedup.core.sharding import derive_keys, shards_of
from dedup.core.state import ShardState
from dedup.errors import ConfigError
from dedup.tools.repair.contents import Snapshot
from dedup.tools.repair.inspection import only_query


@dataclass(frozen=True, slots=True)
class Sighting:
    """One time an ID was let through, and is still remembered.

    Parameters
    ----------
    time_ms : int
        Its effective timestamp.
    segment : str or None
        Where it is kept; None: in Spark state.
    start_ms, end_ms : int
        Its bucket, which is forgotten once the GC watermark has reached its end.
    """

    time_ms: int
    segment: str | None
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a query remembers of one record ID.

    Parameters
    ----------
    root, query_id : str
    id : dict of str to str
        Values by their columns.
    shard : int
        The ID's.
    as_of : int or None
        Micro-batch that the answer is as of; None where nothing is known of the shard.
    certain : bool
        The checkpoint was asked; without it the newest IDs are unknown.
    stable_timestamps : bool
        The query's option.
    seen : tuple of Sighting
        The oldest first.
    gc_watermark_ms, late_watermark_ms : int or None
        The shard's; None before the first.
    """

    root: str
    query_id: str
    id: dict[str, str]
    shard: int
    as_of: int | None
    certain: bool
    stable_timestamps: bool
    seen: tuple[Sighting, ...]
    gc_watermark_ms: int | None
    late_watermark_ms: int | None

    @property
    def status(self) -> Literal["remembered", "not remembered", "cannot tell"]:
        """The answer in short."""
        if self.seen:
            return "remembered"
        # Without the state nobody knows what it holds.
        return "not remembered" if self.certain and self.as_of is not None else "cannot tell"

    def to_json(self) -> dict[str, Any]:
        """Return what `dedup explain --json` prints."""
        return {
            "status": self.status,
            "root": self.root,
            "query_id": self.query_id,
            "id": self.id,
            "shard": self.shard,
            "as_of": self.as_of,
            "certain": self.certain,
            "stable_timestamps": self.stable_timestamps,
            "seen": [
                {
                    "at": _time(found.time_ms),
                    "where": found.segment or "Spark state",
                    "bucket_start": _time(found.start_ms),
                    "bucket_end": _time(found.end_ms),
                }
                for found in self.seen
            ],
            "gc_watermark": _time(self.gc_watermark_ms),
            "late_watermark": _time(self.late_watermark_ms),
        }


def query_to_explain(root: Root, known: Snapshot | None, query_id: str | None) -> Certificate:
    """Return the certificate of the query that is asked.

    Raises
    ------
    ConfigError
        If it is not said which query, or the checkpoint is that of another.
    """
    if known is not None and query_id not in (None, known.query_id):
        raise ConfigError(
            f"--checkpoint is that of query {known.query_id}, not of --query {query_id}."
        )
    wanted = query_id or (known.query_id if known is not None else only_query(root))
    return certificate_of(root, wanted)


def explain(
    root: Root,
    certificate: Certificate,
    id_values: Sequence[str],
    keys: Keys,
    known: Snapshot | None,
) -> Explanation:
    """Return what a query remembers of one record ID.

    Parameters
    ----------
    root : Root
        The catalog.
    certificate : Certificate
        The query's.
    id_values : sequence of str
        The ID's values, in the order of its columns.
    keys : Keys, length 1
        The same as the operator encodes them.
    known : Snapshot or None
        The query's states; without them the manifest backups answer, which lack the newest IDs.

    Raises
    ------
    SegmentDamaged
        If a segment that may hold the ID is missing or damaged.
    """
    shard_key, filter_key = derive_keys(certificate.query_id, certificate.secret)
    spread = kernel.hash64(keys.data, keys.offsets, shard_key)
    shard = int(shards_of(spread, certificate.shards)[0])
    hashes = kernel.hash64(keys.data, keys.offsets, filter_key)
    state = _state(root, certificate.query_id, shard, known)
    seen: list[Sighting] = []
    if state is not None:
        seen += _in_tail(state, keys)
        seen += _in_segments(root, certificate, shard, state, keys, hashes)
    clocks = None if state is None else state.clocks
    return Explanation(
        root=root.url(),
        query_id=certificate.query_id,
        id=dict(zip((name for name, _ in certificate.id_columns), id_values, strict=True)),
        shard=shard,
        as_of=None if state is None else state.epoch,
        certain=known is not None,
        stable_timestamps=certificate.stable_timestamps,
        seen=tuple(sorted(seen, key=lambda found: found.time_ms)),
        gc_watermark_ms=None if clocks is None else known_ms(clocks.gc_watermark_ms),
        late_watermark_ms=None if clocks is None else known_ms(clocks.late_watermark_ms),
    )


def _state(root: Root, query_id: str, shard: int, known: Snapshot | None) -> ShardState | None:
    if known is not None:
        return known.states.get(shard)
    return read_backup(root, query_id, shard)


def _in_tail(state: ShardState, keys: Keys) -> Iterator[Sighting]:
    for key, time_ms in zip(state.tail.keys, state.tail.times_ms.tolist(), strict=True):
        if key == keys[0]:
            start_ms = time_ms // state.bucket_ms * state.bucket_ms
            yield Sighting(time_ms, None, start_ms, start_ms + state.bucket_ms)


def _in_segments(
    root: Root,
    certificate: Certificate,
    shard: int,
    state: ShardState,
    keys: Keys,
    hashes: np.ndarray[Any, np.dtype[np.uint64]],
) -> Iterator[Sighting]:
    with tempfile.TemporaryDirectory(prefix="dedup-explain-") as folder:
        views = OpenViews(8)
        store = ShardStore(
            ShardFiles(
                root,
                LocalCache(certificate.query_id, folder),
                certificate.query_id,
                shard,
                certificate.secret,
            ),
            Attempt(0, "explain", 0),
            views,
        )
        found: set[tuple[int, int]] = set()
        for segment in state.manifest.segments():
            if segment.within(hashes) != slice(0, 1):
                continue
            times_ms = read_unless_lost(
                store, segment, partial(store.lookup, segment, keys, hashes)
            )
            if times_ms is None:
                continue
            time_ms = int(times_ms[0])
            # A merge under way keeps an ID in an input and in an output.
            if time_ms != ABSENT_MS and (segment.start_ms, time_ms) not in found:
                found.add((segment.start_ms, time_ms))
                yield Sighting(time_ms, segment.name, segment.start_ms, segment.end_ms)
        views.close_all()


def _time(time_ms: int | None) -> str | None:
    text = iso(time_ms)
    if time_ms is None or text is None or not text.endswith("Z"):
        return text
    return f"{text[:-1]}.{time_ms % 1000:03d}Z"
