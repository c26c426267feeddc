"""Which arguments the kernel in C refuses, and how a path is chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dedup import kernel
from dedup.errors import ConfigError
from dedup.kernel._kernel import Kernel
from tests.support.kernel_models import KEY, hashes_of, load, misaligned
from tests.support.kernel_models import column as column_of


def u8(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def u64(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


DATA, OFFSETS, HASHES = u8(1, 2, 3), i64(0, 1, 3), u64(5, 6)
COLUMN = (DATA, OFFSETS, HASHES)
BITS = np.zeros(8, np.uint32)
BLOCK = (u8(1, 1, 1, 0, 1, 0, 0, 0, 9, 0, 0, 0, 65), i64(0, 13))

#: Arguments that each function accepts.
GOOD: dict[str, tuple[Any, ...]] = {
    "hash64": (DATA, OFFSETS, KEY),
    "filter_add": (BITS, HASHES),
    "filter_probe": ([BITS], HASHES),
    "filter_pages": (HASHES, 4, 2),
    "filter_probe_pages": (np.zeros(16, np.uint32), i64(0, 1), i64(0, 1, 2), u64(5, 2**63), 2, 1),
    "page_sums": (DATA, 8),
    "first_occurrence": COLUMN,
    "match": (*COLUMN, *COLUMN),
    "sort_keys": COLUMN,
    "take_keys": (DATA, OFFSETS, i64(1, 0)),
    "blocks_find": (*BLOCK, i64(0, 0), DATA, OFFSETS),
    "blocks_encode": (DATA, OFFSETS, i64(1, 2), i64(0, 2), False),
    "blocks_decode": BLOCK,
    "blocks_digests": BLOCK,
    "scan_verdicts": (i64(1, 2), i64(1, 2), u8(0, 0), u8(0, 0), 3),
    "encode_uuid": (DATA, OFFSETS),
    "decode_uuid": (u8(0, 5, 0), i64(0, 2, 3)),
}
ARRAYS = [
    (function, position)
    for function, arguments in GOOD.items()
    for position, argument in enumerate(arguments)
    if isinstance(argument, np.ndarray)
]
OFFSET_ARGUMENTS = [
    ("hash64", 1), ("first_occurrence", 1), ("match", 1), ("match", 4), ("sort_keys", 1),
    ("take_keys", 1), ("blocks_find", 1), ("blocks_find", 4), ("blocks_encode", 1),
    ("blocks_decode", 1), ("blocks_digests", 1), ("encode_uuid", 1), ("decode_uuid", 1),
]  # fmt: skip
#: Arrays that have as many items as another of the function.
SIZED_ARGUMENTS = [
    *(("filter_probe_pages", n) for n in range(4)), ("first_occurrence", 2), ("match", 2),
    ("match", 5), ("sort_keys", 2), ("blocks_find", 2), ("blocks_encode", 2),
    *(("scan_verdicts", n) for n in range(4)),
]  # fmt: skip


def call(tested: Kernel, function: str, position: int = -1, value: Any = None) -> Any:
    arguments = list(GOOD[function])
    if position >= 0:
        arguments[position] = value
    return getattr(tested, function)(*arguments)


@pytest.mark.parametrize("function", sorted(GOOD.keys() - {"filter_add"}))  # adds in place
def test_arguments_may_be_misaligned_and_stay_as_they_are(tested: Kernel, function: str) -> None:
    # Long enough for loops that take several items at a time.
    keys = [b"%d" % (i % 13) for i in range(40)]
    column, hashes = column_of(keys), hashes_of(keys)
    longer = {
        "hash64": (*column, KEY),
        "first_occurrence": (*column, hashes),
        "match": (*column, hashes, *column, hashes),
        "sort_keys": (*column, hashes),
        "encode_uuid": column,
        "decode_uuid": tested.encode_uuid(*column),
    }
    arguments = longer.get(function, GOOD[function])
    odd = [misaligned(a) if isinstance(a, np.ndarray) else a for a in arguments]
    before = [a.copy() if isinstance(a, np.ndarray) else a for a in odd]
    found, expected = (getattr(tested, function)(*given) for given in (odd, arguments))
    for one, other in zip(before, odd, strict=True):
        assert np.array_equal(one, other)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("function", "position"), ARRAYS)
def test_other_types_are_refused(compiled: Kernel, function: str, position: int) -> None:
    good = GOOD[function][position]
    swapped = good.astype(good.dtype.newbyteorder()) if good.itemsize > 1 else good.astype("i1")
    arrays = (good.astype(np.float64), good.astype(np.int16), good.view("i1"), swapped)
    for value in (*arrays, None, 3, good.tolist()):
        with pytest.raises(TypeError):
            call(compiled, function, position, value)


@pytest.mark.parametrize(("function", "position"), ARRAYS)
def test_other_shapes_are_refused(compiled: Kernel, function: str, position: int) -> None:
    good = GOOD[function][position]
    for value in (np.repeat(good, 2)[::2], good.reshape(1, -1).repeat(2, 0)):
        with pytest.raises(ValueError, match=r"contiguous|one-dimensional"):
            call(compiled, function, position, value)


@pytest.mark.parametrize(("function", "position"), OFFSET_ARGUMENTS)
@pytest.mark.parametrize(
    "offsets",
    [[], [-1, 0, 1], [0, 2, 1], [3, 2, 1], [0, 1, 1000], [0, 1000, 1], [0, 0, 2**63 - 1],
     [-(2**63), 0, 1], [-(2**63), 2**63 - 1, 2**63 - 1]],
)  # fmt: skip
def test_offsets_outside_the_data_are_refused(
    compiled: Kernel, function: str, position: int, offsets: list[int]
) -> None:
    with pytest.raises(ValueError, match="offsets"):
        call(compiled, function, position, i64(*offsets))


@pytest.mark.parametrize(("function", "position"), SIZED_ARGUMENTS)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_sizes_that_differ_are_refused(
    compiled: Kernel, function: str, position: int, n: int
) -> None:
    dtype = GOOD[function][position].dtype
    with pytest.raises(ValueError, match="items"):
        call(compiled, function, position, np.zeros(n, dtype))


@pytest.mark.parametrize("function", ["blocks_find", "blocks_encode"])
def test_the_number_of_digests_must_match_the_keys(compiled: Kernel, function: str) -> None:
    getattr(compiled, function)(*GOOD[function], u64(1, 2))
    for n in (0, 1, 3):
        with pytest.raises(ValueError, match="items"):
            getattr(compiled, function)(*GOOD[function], np.zeros(n, np.uint64))
    for other in (i64(1, 2), [1, 2], 3):
        with pytest.raises(TypeError):
            getattr(compiled, function)(*GOOD[function], other)


@pytest.mark.parametrize("words", [0, 1, 7, 9])
def test_filters_of_no_or_broken_blocks_are_refused(compiled: Kernel, words: int) -> None:
    bits = np.zeros(words, np.uint32)
    with pytest.raises(ValueError, match="8 words per block"):
        call(compiled, "filter_add", 0, bits)
    with pytest.raises(ValueError, match="8 words per block"):
        call(compiled, "filter_probe", 0, [BITS, bits])


def test_filters_must_be_a_list_of_at_most_64(compiled: Kernel) -> None:
    with pytest.raises(ValueError, match="at most 64"):
        call(compiled, "filter_probe", 0, [BITS] * 65)
    items = (None, [1], BITS.view(np.int32), BITS.view(np.uint64))
    for filters in ((BITS,), BITS, None, {0: BITS}, *([BITS, item] for item in items)):
        with pytest.raises(TypeError):
            call(compiled, "filter_probe", 0, filters)


def test_read_only_filter_is_not_added_to(tested: Kernel) -> None:
    bits = np.zeros(8, np.uint32)
    bits.flags.writeable = False
    with pytest.raises(ValueError, match=r"writable|read-only"):
        call(tested, "filter_add", 0, bits)
    assert not bits.any()


def test_hash_key_is_16_bytes(compiled: Kernel) -> None:
    for key in (b"", KEY[:15], KEY + b"\0"):
        with pytest.raises(ValueError, match="16 bytes"):
            call(compiled, "hash64", 2, key)
    for key in (None, "0123456789abcdef", bytearray(KEY), 5):
        with pytest.raises(TypeError):
            call(compiled, "hash64", 2, key)


# ---- the extension itself: its outputs come from outside too ----


@pytest.mark.parametrize(
    ("function", "arguments", "good"),
    [("hash64", (DATA, OFFSETS, KEY, ..., False), np.zeros(2, np.uint64)),
     ("filter_probe", ([BITS], HASHES, ..., False), np.zeros(2, np.uint64)),
     ("filter_pages", (*GOOD["filter_pages"], ..., np.zeros(3, np.int64)), np.zeros(2, np.int64)),
     ("filter_pages", (*GOOD["filter_pages"], np.zeros(2, np.int64), ...), np.zeros(3, np.int64)),
     ("filter_probe_pages", (*GOOD["filter_probe_pages"], ..., False), np.zeros(2, np.uint8)),
     ("first_occurrence", (*COLUMN, ...), np.zeros(2, np.int64)),
     ("sort_keys", (*COLUMN, ...), np.zeros(2, np.int64)),
     ("take_keys", (*GOOD["take_keys"], ...), np.zeros(3, np.int64)),
     ("blocks_find", (*GOOD["blocks_find"], ..., None), np.zeros(2, np.int64)),
     ("blocks_encode", (*GOOD["blocks_encode"], ..., None), np.zeros(2, np.int64)),
     ("scan_verdicts", (*GOOD["scan_verdicts"], ...), np.zeros(2, np.uint8)),
     ("encode_uuid", (DATA, OFFSETS, ..., np.zeros(3, np.int64)), np.zeros(5, np.uint8)),
     ("encode_uuid", (DATA, OFFSETS, np.zeros(5, np.uint8), ...), np.zeros(3, np.int64)),
     ("decode_uuid", (*GOOD["decode_uuid"], ..., np.zeros(3, np.int64)), np.zeros(36, np.uint8)),
     ("decode_uuid", (*GOOD["decode_uuid"], np.zeros(36, np.uint8), ...), np.zeros(3, np.int64))],
)  # fmt: skip
def test_outputs_of_other_size_or_type_are_refused(
    function: str, arguments: tuple[Any, ...], good: np.ndarray
) -> None:
    load("native")
    from dedup.kernel import _native

    called: Callable[..., Any] = getattr(_native, function)

    def with_output(out: Any) -> None:
        called(*(out if a is ... else a for a in arguments))

    with_output(good)
    for n in (0, len(good) - 1, len(good) + 1):
        with pytest.raises(ValueError, match="items"):
            with_output(np.zeros(n, good.dtype))
    read_only = good.copy()
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match=r"writable|read-only"):
        with_output(read_only)
    for value in (None, good.astype(np.float32), bytes(good.nbytes)):
        with pytest.raises((TypeError, ValueError)):
            with_output(value)
    with pytest.raises(TypeError):
        called()


# ---- choice of the path ----


def chosen(code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    code = f"{code}\nfrom dedup import kernel; import dedup.kernel; print(kernel.PATH)"
    plain = {k: v for k, v in os.environ.items() if k != "DEDUP_KERNEL"}
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        env={**plain, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("forced", "paths"),
    [("", {"native-avx2", "native-scalar"}), ("native", {"native-avx2", "native-scalar"}),
     ("scalar", {"native-scalar"}), ("numpy", {"numpy"})],
)  # fmt: skip
def test_environment_forces_a_path(forced: str, paths: set[str]) -> None:
    load("native")
    done = chosen(DEDUP_KERNEL=forced)
    assert done.stdout.strip() in paths
    assert done.stderr == ""


def test_an_unknown_kernel_path_is_rejected() -> None:
    done = chosen(DEDUP_KERNEL="fast")
    assert "ConfigError: there is no kernel path 'fast'" in done.stderr
    with pytest.raises(ConfigError):
        kernel.implementation("")


def test_missing_extension_warns_once_and_falls_back() -> None:
    missing = "import sys; sys.modules['dedup.kernel._native'] = None"
    done = chosen(missing)
    assert done.stdout == "numpy\n"
    assert done.stderr.count("DedupWarning") == 1
    assert "C compiler" in done.stderr
    # Naming it explicitly gets no substitute.
    assert "ModuleNotFoundError" in chosen(missing, DEDUP_KERNEL="native").stderr
    assert chosen(missing, DEDUP_KERNEL="numpy").stderr == ""


def test_public_functions_run_the_chosen_path() -> None:
    assert kernel.PATH in ("native-avx2", "native-scalar", "numpy")
    for function, arguments in GOOD.items():
        got, expected = getattr(kernel, function)(*arguments), call(load("numpy"), function)
        if function != "filter_add":
            pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
            assert all(np.array_equal(a, b) for a, b in pairs)
