"""The kernel in numpy alone: the reference for the C extension, and its stand-in.

Whole-array operations throughout. Python loops run over word positions inside keys, over the
rounds of a doubling, and over the rare keys that share a 64-bit hash without being equal.
"""

from __future__ import annotations

from dedup.kernel._numpy_blocks import blocks_find
from dedup.kernel._numpy_hash import filter_add, filter_probe, hash64
from dedup.kernel._numpy_keys import encode_uuid, first_occurrence, match, sort_keys
from dedup.kernel._numpy_scan import scan_verdicts

__all__ = [
    "blocks_find",
    "encode_uuid",
    "filter_add",
    "filter_probe",
    "first_occurrence",
    "hash64",
    "match",
    "name",
    "scan_verdicts",
    "sort_keys",
]

name = "numpy"
