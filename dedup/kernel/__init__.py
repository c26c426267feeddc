"""The inner loops: hashing, filters, joins and sorts over columns of keys.

`dedup.kernel._kernel.Kernel` documents each function. Each function exists twice, in C and in
numpy, with equal results. A complete set of functions is a *path*: C with AVX2 instructions, C
without AVX2, or numpy. ``PATH`` names the path in use: ``"native-avx2"``, ``"native-scalar"`` or
``"numpy"``. The environment variable ``DEDUP_KERNEL`` forces ``native``, ``scalar`` or ``numpy``.

Arrays are one-dimensional, C-contiguous numpy arrays of exactly the annotated dtype. They need not
be aligned. ``data`` and ``offsets`` are a column of n keys: key ``i`` is
``data[offsets[i]:offsets[i + 1]]``. A function writes only to arguments that its docstring names,
and the caller must not change any argument during a call. The C functions release the GIL. They
raise TypeError for an argument of a wrong type, and ValueError for a wrong size or content.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module

from dedup.errors import ConfigError, DedupWarning
from dedup.kernel import _numpy
from dedup.kernel._kernel import Compiled, Kernel


def implementation(name: str) -> Kernel:
    """Return one path of the kernel: ``"native"``, ``"scalar"`` or ``"numpy"``.

    ``"native"`` uses AVX2 if the processor has it. ``"scalar"`` is C without AVX2.

    Raises
    ------
    ConfigError
        If the name is unknown.
    ImportError
        If the C extension is not installed.
    """
    if name == "numpy":
        return _numpy
    if name not in ("native", "scalar"):
        raise ConfigError(
            f"there is no kernel path {name!r}: "
            "set DEDUP_KERNEL to native, scalar or numpy, or leave it unset"
        )
    import_module("dedup.kernel._native")
    return Compiled(simd=name == "native")


def _choose() -> Kernel:
    forced = os.environ.get("DEDUP_KERNEL")
    if forced:
        return implementation(forced)
    try:
        return implementation("native")
    except ImportError as error:
        warnings.warn(
            f"The C extension is not installed ({error}), so dedup uses the slower numpy path. "
            "Results are the same. Install a C compiler and reinstall rolling-dedup.",
            DedupWarning,
            stacklevel=2,
        )
        return _numpy


_path = _choose()

#: The path in use in this process.
PATH: str = _path.name

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
