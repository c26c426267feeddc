"""Shards: how IDs map to shards, and shards to Spark's partitions, and the keys of the hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from dedup.core.filter import hash_key_id
from dedup.core.hash_ranges import range_indexes
from dedup.kernel.arrays import I64, U64

#: Seed of Spark's ``hash``.
_SEED = 42
_MASK = 0xFFFFFFFF


def derive_keys(query_id: str, secret: bytes = b"") -> tuple[bytes, bytes]:
    """Return two 16-byte hash keys of a query: one chooses shards, the other is for filters.

    All IDs of a shard share bits of the first hash, so filters over that hash would fill unevenly.
    Each key is a BLAKE2b hash of the query ID with its own personalisation (RFC 7693, section 2.5),
    keyed by the query's secret. Anyone who knows query ID and secret can choose IDs that all belong
    to one shard. A query with an older certificate has no secret.
    """
    return (
        _derived(query_id, secret, b"dedup shard v1"),
        _derived(query_id, secret, b"dedup filter v1"),
    )


def payload_key(query_id: str, secret: bytes = b"") -> bytes:
    """Return the 16-byte key of the hashes of payloads, derived as in `derive_keys`."""
    return _derived(query_id, secret, b"dedup payload v1")


def filter_key_id(query_id: str, secret: bytes = b"") -> int:
    """Return the ID of a query's filter key, which certificate, segments and sidecars store."""
    return hash_key_id(derive_keys(query_id, secret)[1])


def _derived(query_id: str, secret: bytes, person: bytes) -> bytes:
    return hashlib.blake2b(query_id.encode(), digest_size=16, key=secret, person=person).digest()


def shards_of(hashes: U64, shards: int) -> I64:
    """Return the shard of each ID. ``hashes`` are made with the first key of `derive_keys`."""
    return range_indexes(hashes, shards)


def slot_keys(shards: int, partitions: int, used: Collection[int] = frozenset()) -> tuple[int, ...]:
    """Return for each shard the number by which Spark groups its rows.

    With these numbers Spark puts shard i into partition i mod ``partitions``. They are the smallest
    distinct 32-bit integers >= 0 with this property that are not ``used``.

    Notes
    -----
    Spark puts a row into partition ``pmod(hash(number), partitions)``. The numbers 0 to n-1 would
    leave a third of the partitions empty.
    """
    waiting = [list(range(p, shards, partitions))[::-1] for p in range(min(shards, partitions))]
    keys = [0] * shards
    left, key = shards, 0
    while left:
        hashed = spark_hash_int(key)
        partition = (hashed - (1 << 32) if hashed >> 31 else hashed) % partitions
        if partition < len(waiting) and waiting[partition] and key not in used:
            keys[waiting[partition].pop()] = key
            left -= 1
        key += 1
    return tuple(keys)


def spark_hash_int(value: int) -> int:
    """Return Spark's ``hash`` of an INT, unsigned: Murmur3_x86_32 of org.apache.spark.unsafe."""
    k = _rotated(value * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    h = (_rotated(_SEED ^ k, 13) * 5 + 0xE6546B64) & _MASK
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & _MASK
    return h ^ h >> 16


def _rotated(x: int, bits: int) -> int:
    return (x << bits | x >> (32 - bits)) & _MASK
