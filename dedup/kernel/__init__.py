"""The inner loops: hashing, filters, joins and sorts over columns of keys.

Every function exists twice, in C (``dedup.kernel._native``) and in numpy, with the same results bit
for bit. ``PATH`` shows which runs: ``"native-avx2"``, ``"native-scalar"`` or ``"numpy"``. The
environment variable ``DEDUP_KERNEL`` forces one: ``native``, ``scalar`` or ``numpy``.

Arrays are one-dimensional, C-contiguous numpy arrays of exactly the dtype given; alignment does
not matter. ``data`` and ``offsets`` are a column of n keys: key ``i`` is
``data[offsets[i]:offsets[i + 1]]``. Arguments of another type raise TypeError, of wrong size or
content ValueError; arguments are not written to unless the text says so, and must not be written
to by others during a call. The C functions release the GIL.
"""

from __future__ import annotations

import os
import warnings

from dedup.errors import ConfigError, DedupWarning
from dedup.kernel import _numpy
from dedup.kernel._types import Kernel


def implementation(name: str) -> Kernel:
    """Return one path of the kernel: ``"native"``, ``"scalar"`` or ``"numpy"``.

    ``"native"`` uses AVX2 where the processor has it.

    Raises
    ------
    ConfigError
        When there is no path of that name.
    ImportError
        When the C extension is not installed.
    """
    if name == "numpy":
        return _numpy
    if name not in ("native", "scalar"):
        raise ConfigError(
            f"there is no kernel path {name!r}: "
            "set DEDUP_KERNEL to native, scalar or numpy, or leave it unset"
        )
    from dedup.kernel._compiled import Compiled

    return Compiled(simd=name == "native")


def _choose() -> Kernel:
    forced = os.environ.get("DEDUP_KERNEL")
    if forced:
        return implementation(forced)
    try:
        return implementation("native")
    except ImportError as error:
        # Once per process: this runs when the module is first imported.
        warnings.warn(
            f"the C extension is not installed ({error}), so the slower numpy path is used; "
            "answers are the same. Install a C compiler and reinstall rolling-dedup",
            DedupWarning,
            stacklevel=2,
        )
        return _numpy


_path = _choose()

#: Which path runs in this process.
PATH: str = _path.name

# `dedup.kernel._types.Kernel` says what each of them does.
hash64 = _path.hash64
filter_add = _path.filter_add
filter_probe = _path.filter_probe
filter_pages = _path.filter_pages
filter_probe_pages = _path.filter_probe_pages
page_sums = _path.page_sums
first_occurrence = _path.first_occurrence
match = _path.match
sort_keys = _path.sort_keys
take_keys = _path.take_keys
blocks_find = _path.blocks_find
blocks_encode = _path.blocks_encode
blocks_decode = _path.blocks_decode
blocks_digests = _path.blocks_digests
scan_verdicts = _path.scan_verdicts
encode_uuid = _path.encode_uuid
decode_uuid = _path.decode_uuid
