"""The kernel in numpy: the reference for the C extension, and the substitute if C is missing.

All operations are on whole arrays. Python loops run only over the words of the longest key, over
lengths that double each time, and over unequal keys with the same 64-bit hash, which are rare. Only
the C path checks its arguments, because a wrong argument would make C access other memory.
"""

from __future__ import annotations

from dedup.kernel._numpy_blocks import blocks_decode as blocks_decode
from dedup.kernel._numpy_blocks import blocks_digests as blocks_digests
from dedup.kernel._numpy_blocks import blocks_encode as blocks_encode
from dedup.kernel._numpy_blocks import blocks_find as blocks_find
from dedup.kernel._numpy_hash import filter_add as filter_add
from dedup.kernel._numpy_hash import filter_pages as filter_pages
from dedup.kernel._numpy_hash import filter_probe as filter_probe
from dedup.kernel._numpy_hash import filter_probe_pages as filter_probe_pages
from dedup.kernel._numpy_hash import hash64 as hash64
from dedup.kernel._numpy_hash import page_sums as page_sums
from dedup.kernel._numpy_keys import decode_uuid as decode_uuid
from dedup.kernel._numpy_keys import encode_uuid as encode_uuid
from dedup.kernel._numpy_keys import first_occurrence as first_occurrence
from dedup.kernel._numpy_keys import match as match
from dedup.kernel._numpy_keys import scan_verdicts as scan_verdicts
from dedup.kernel._numpy_keys import sort_keys as sort_keys
from dedup.kernel._numpy_keys import take_keys as take_keys

name = "numpy"
simd = False
