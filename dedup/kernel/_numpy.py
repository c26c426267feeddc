"""The kernel in numpy alone: the reference for the C extension, and its stand-in.

Whole-array operations throughout. Python loops run over word positions inside keys, over the
rounds of a doubling, and over the rare keys that share a 64-bit hash without being equal.
"""

from __future__ import annotations

from dedup.kernel._numpy_blocks import blocks_decode, blocks_digests, blocks_encode, blocks_find
from dedup.kernel._numpy_hash import filter_add, filter_probe, hash64
from dedup.kernel._numpy_keys import (
    decode_uuid,
    encode_uuid,
    first_occurrence,
    match,
    sort_keys,
    take_keys,
)
from dedup.kernel._numpy_pages import filter_pages, filter_probe_pages, page_sums
from dedup.kernel._numpy_scan import scan_verdicts

__all__ = [
    "blocks_decode",
    "blocks_digests",
    "blocks_encode",
    "blocks_find",
    "decode_uuid",
    "encode_uuid",
    "filter_add",
    "filter_pages",
    "filter_probe",
    "filter_probe_pages",
    "first_occurrence",
    "hash64",
    "match",
    "name",
    "page_sums",
    "scan_verdicts",
    "sort_keys",
    "take_keys",
]

name = "numpy"
