"""`dedup explain`: when a record ID was seen, where it is kept, and until when it is remembered."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dedup import kernel
from dedup.catalog.cache import LocalCache
from dedup.catalog.certificate import Certificate, certificate_of
from dedup.catalog.repair.backup import read_backup
from dedup.catalog.root import Root
from dedup.catalog.store import Attempt, ShardStore
from dedup.catalog.view import OpenViews
from dedup.cli.catalog.work import only_query
from dedup.cli.explain.id_text import id_key
from dedup.cli.failures import CANNOT_TELL, NOT_FOUND, OK
from dedup.cli.figures import iso
from dedup.core.clocks import known_ms
from dedup.core.keys import Keys
from dedup.core.ports import ABSENT_MS
from dedup.core.sharding import derive_keys, shards_of
from dedup.core.state import ShardState
from dedup.errors import ConfigError, SegmentDamaged

if TYPE_CHECKING:
    from dedup.spark.driver.state_reader import Snapshot


#: What is said of an ID, and the exit code.
_CODES = {"remembered": OK, "not remembered": NOT_FOUND, "cannot tell": CANNOT_TELL}


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


def explain(
    root: Root, texts: Sequence[str], known: Snapshot | None, query_id: str | None = None
) -> dict[str, Any]:
    """Return what a query remembers of one record ID; ``status`` is the answer in short.

    Parameters
    ----------
    root : Root
        The catalog.
    texts : sequence of str
        The ID's values, in the order of its columns.
    known : Snapshot or None
        The query's states; without them the manifest backups answer, which lack the newest IDs.
    query_id : str, optional
        Needed where the catalog has several queries and `known` does not tell which.

    Raises
    ------
    ConfigError
        If the values are no ID of this query, or it is not said which query.
    SegmentDamaged
        If a segment that may hold the ID is missing or damaged.
    """
    certificate = _certificate(root, known, query_id)
    keys = id_key(certificate.id_columns, texts)
    shard_key, filter_key = derive_keys(certificate.query_id)
    spread = kernel.hash64(keys.data, keys.offsets, shard_key)
    shard = int(shards_of(spread, certificate.shards)[0])
    hashes = kernel.hash64(keys.data, keys.offsets, filter_key)
    state = _state(root, certificate.query_id, shard, known)
    seen: list[Sighting] = []
    if state is not None:
        seen += _in_tail(state, keys)
        seen += _in_segments(root, certificate, shard, state, keys, hashes)
    clocks = None if state is None else state.clocks
    # Without the state nobody knows what it holds.
    missing = "cannot tell" if known is None or state is None else "not remembered"
    return {
        "status": "remembered" if seen else missing,
        "root": root.url(),
        "query_id": certificate.query_id,
        "id": dict(zip((name for name, _ in certificate.id_columns), texts, strict=True)),
        "shard": shard,
        "as_of": None if state is None else state.epoch,
        "certain": known is not None,
        "stable_timestamps": certificate.stable_timestamps,
        "seen": [
            {
                "at": _time(found.time_ms),
                "where": found.segment or "Spark state",
                "bucket_start": _time(found.start_ms),
                "bucket_end": _time(found.end_ms),
            }
            for found in sorted(seen, key=lambda found: found.time_ms)
        ],
        "gc_watermark": _time(None if clocks is None else clocks.gc_watermark_ms),
        "late_watermark": _time(None if clocks is None else clocks.late_watermark_ms),
    }


def exit_code(body: dict[str, Any]) -> int:
    """Return 0 for an ID that is remembered, 5 for one that is not, 6 where nobody can tell."""
    return _CODES[body["status"]]


def sentences(body: dict[str, Any]) -> Iterator[str]:
    """Put what `explain` returns into words, the answer first."""
    name = ", ".join(f"{column}={text}" for column, text in body["id"].items())
    yield f"{name}: {_answer(body)}"
    if not body["certain"] and body["seen"]:
        yield "  only the catalog was asked; --checkpoint DIR adds the newest micro-batches"
    elif not body["certain"]:
        yield "  the newest IDs are in Spark state alone, which --checkpoint DIR reads"
    for found in body["seen"]:
        yield f"  let through at {found['at']}, kept in {found['where']}"
        yield f"  forgotten when the GC watermark reaches {found['bucket_end']}" + (
            " (with late='drop': the late watermark)" if body["stable_timestamps"] else ""
        )
    yield f"  shard {body['shard']} of query {body['query_id']}"
    if body["as_of"] is None:
        yield "  nothing is known of this shard"
    else:
        gc = body["gc_watermark"] or "at no time yet"
        as_of = "as adopted" if body["as_of"] < 0 else f"as of micro-batch {body['as_of']}"
        yield f"  GC watermark {gc}, {as_of}"


def _answer(body: dict[str, Any]) -> str:
    if body["status"] == "remembered":
        return "remembered"
    if body["status"] == "not remembered":
        return "not remembered: it was never let through, or is forgotten"
    if body["certain"]:
        return "unknown: the checkpoint holds no state of its shard"
    return "not known from the catalog alone"


def _certificate(root: Root, known: Snapshot | None, query_id: str | None) -> Certificate:
    if known is not None and query_id not in (None, known.query_id):
        raise ConfigError(
            f"--checkpoint is that of query {known.query_id}, not of --query {query_id}."
        )
    wanted = query_id or (known.query_id if known is not None else only_query(root))
    return certificate_of(root, wanted)


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
            root,
            LocalCache(certificate.query_id, folder),
            query_id=certificate.query_id,
            shard=shard,
            attempt=Attempt(0, "explain", 0),
            open_views=views,
        )
        found: set[tuple[int, int]] = set()
        for segment in state.manifest.segments():
            if segment.within(hashes) != slice(0, 1):
                continue
            try:
                time_ms = int(store.lookup(segment, keys, hashes)[0])
            except SegmentDamaged:
                if not store.loss_accepted(segment):
                    raise
                continue
            # A merge under way keeps an ID in an input and in an output.
            if time_ms != ABSENT_MS and (segment.start_ms, time_ms) not in found:
                found.add((segment.start_ms, time_ms))
                yield Sighting(time_ms, segment.name, segment.start_ms, segment.end_ms)
        views.close_all()


def _time(time_ms: int | None) -> str | None:
    if time_ms is None or known_ms(time_ms) is None:
        return None
    text = iso(time_ms)
    return f"{text[:-1]}.{time_ms % 1000:03d}Z" if text and text.endswith("Z") else text
