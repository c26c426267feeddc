"""Explain when a query let a record ID pass, where the ID is kept, and until when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Literal

from dedup import kernel
from dedup.catalog.backup import read_backup
from dedup.catalog.cache import LocalCache
from dedup.catalog.certificate import Certificate, certificate_of
from dedup.catalog.open_views import OpenViews
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.core.clocks import known_ms
from dedup.core.keys import Keys
from dedup.core.lookup import read_unless_lost
from dedup.core.ports import ABSENT_MS
from dedup.core.sharding import derive_keys, shards_of
from dedup.core.state import ShardState
from dedup.errors import ConfigError
from dedup.kernel.arrays import U64
from dedup.storage.root import Root
from dedup.tools.repair.id_text import id_key
from dedup.tools.repair.opening import Checkpoint, Where, only_query, open_root, snapshot_of
from dedup.values.duration import iso


@dataclass(frozen=True, slots=True)
class Sighting:
    """A record with the ID that passed and is still remembered."""

    #: Effective timestamp of the record.
    time_ms: int
    #: Segment that keeps the record, or None if Spark state keeps it.
    segment: str | None
    #: Range of the record's bucket. The bucket expires once the GC watermark has reached `end_ms`.
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that a query remembers of one record ID."""

    root: str
    query_id: str
    #: Values of the ID by column.
    id: dict[str, str]
    shard: int
    #: Last micro-batch that the answer includes, or None if the ID's shard has no known state.
    as_of: int | None
    #: Whether a checkpoint was read. Without a checkpoint the newest IDs are unknown.
    certain: bool
    stable_timestamps: bool
    #: Remembered records with the ID, the oldest first.
    seen: tuple[Sighting, ...]
    #: Watermarks of the ID's shard, or None if the shard has none yet.
    gc_watermark_ms: int | None
    late_watermark_ms: int | None
    #: IDs of times before this were forgotten early, by `max_live_ids`. None if it has no effect.
    forgotten_before_ms: int | None = None

    @property
    def status(self) -> Literal["remembered", "not remembered", "cannot tell"]:
        if self.seen:
            return "remembered"
        return "not remembered" if self.certain and self.as_of is not None else "cannot tell"

    def to_json(self) -> dict[str, Any]:
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
                    "at": _time(sighting.time_ms),
                    "where": sighting.segment or "Spark state",
                    "bucket_start": _time(sighting.start_ms),
                    "bucket_end": _time(sighting.end_ms),
                }
                for sighting in self.seen
            ],
            "gc_watermark": _time(self.gc_watermark_ms),
            "late_watermark": _time(self.late_watermark_ms),
            "forgotten_before": _time(self.forgotten_before_ms),
        }


def explain(
    root: Where,
    id: str | Sequence[str],  # noqa: A002
    checkpoint: Checkpoint | None = None,
    query: str | None = None,
) -> Explanation:
    """Return when a query let a record ID pass, where the ID is kept, and until when.

    Parameters
    ----------
    root
        The catalog.
    id : str, or sequence of str
        Text of the ID column's value, or the texts of all ID columns, in order.
    checkpoint : optional
        Checkpoint of the query. Only a checkpoint contains the newest IDs.
    query : str, optional
        ID of the query. Needed if the catalog holds several queries and no checkpoint is given.

    Raises
    ------
    ConfigError
        If the values do not fit the ID columns, the query is unknown, or the checkpoint belongs to
        another query.
    SegmentDamaged
        If a segment that may hold the ID is missing or damaged.
    """
    root = open_root(root)
    snapshot = snapshot_of(root, checkpoint)
    if snapshot is not None and query not in (None, snapshot.query_id):
        raise ConfigError(
            f"--checkpoint belongs to query {snapshot.query_id}, not to --query {query}."
        )
    query_id = query or (snapshot.query_id if snapshot else only_query(root))
    certificate = certificate_of(root, query_id)
    values = [id] if isinstance(id, str) else id
    keys = id_key(certificate.id_columns, values)
    shard_key, filter_key = derive_keys(certificate.query_id, certificate.secret)
    spread = kernel.hash64(keys.data, keys.offsets, shard_key)
    shard = int(shards_of(spread, certificate.shards)[0])
    state = (
        read_backup(root, certificate.query_id, shard)
        if snapshot is None
        else snapshot.states.get(shard)
    )
    seen: list[Sighting] = []
    if state is not None:
        hashes = kernel.hash64(keys.data, keys.offsets, filter_key)
        seen += _in_tail(state, keys)
        seen += _in_segments(root, certificate, shard, state, keys, hashes)
    return Explanation(
        root=root.url(),
        query_id=certificate.query_id,
        id=dict(zip((name for name, _ in certificate.id_columns), values, strict=True)),
        shard=shard,
        as_of=None if state is None else state.epoch,
        certain=snapshot is not None,
        stable_timestamps=certificate.stable_timestamps,
        seen=tuple(sorted(seen, key=lambda sighting: sighting.time_ms)),
        gc_watermark_ms=None if state is None else known_ms(state.clocks.gc_watermark_ms),
        late_watermark_ms=None if state is None else known_ms(state.clocks.late_watermark_ms),
        forgotten_before_ms=state.capped_before_ms if state and state.is_capped else None,
    )


def _in_tail(state: ShardState, keys: Keys) -> Iterator[Sighting]:
    for key, time_ms in zip(state.tail.keys, state.tail.times_ms.tolist(), strict=True):
        if key == keys[0]:
            start_ms = time_ms // state.bucket_ms * state.bucket_ms
            yield Sighting(time_ms, None, start_ms, start_ms + state.bucket_ms)


def _in_segments(
    root: Root, certificate: Certificate, shard: int, state: ShardState, keys: Keys, hashes: U64
) -> Iterator[Sighting]:
    query_id = certificate.query_id
    with TemporaryDirectory(prefix="dedup-explain-") as folder:
        cache = LocalCache(query_id, folder)
        files = ShardFiles(root, cache, query_id, shard, certificate.secret)
        views = OpenViews(8)
        store = ShardStore(files, Attempt(0, "explain", 0), views)
        reported: set[tuple[int, int]] = set()
        for segment in state.manifest.segments():
            if segment.within(hashes) != slice(0, 1):
                continue
            lookup = partial(store.lookup, segment, keys, hashes)
            times_ms = read_unless_lost(store, segment, lookup, [])
            if times_ms is None:
                continue
            time_ms = int(times_ms[0])
            # During a merge, an old and a new segment may both hold the ID.
            if time_ms != ABSENT_MS and (segment.start_ms, time_ms) not in reported:
                reported.add((segment.start_ms, time_ms))
                yield Sighting(time_ms, segment.name, segment.start_ms, segment.end_ms)
        views.close_all()


def _time(time_ms: int | None) -> str | None:
    text = iso(time_ms)
    if time_ms is None or text is None or not text.endswith("Z"):
        return text
    return f"{text[:-1]}.{time_ms % 1000:03d}Z"
