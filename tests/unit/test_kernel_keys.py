"""Equal keys, joins, order, gathering and UUIDs: every path against plain Python."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.kernel._kernel import Kernel
from tests.support.kernel_models import (
    KEY,
    SANITIZED,
    array,
    as_list,
    column,
    encode_uuid,
    hash_masks,
    hashes_of,
    kernel_settings,
    load,
    misaligned,
    some_key,
    some_keys,
)


@given(keys=some_keys, mask=hash_masks)
@kernel_settings
def test_first_occurrence_finds_the_first_equal_key(
    tested: Kernel, keys: list[bytes], mask: int
) -> None:
    got = tested.first_occurrence(*column(keys), hashes_of(keys, mask))
    assert got.dtype == np.int64
    assert got.tolist() == [keys.index(key) for key in keys]


@given(build=some_keys, probe=some_keys, mask=hash_masks)
@kernel_settings
def test_match_joins_equal_keys(
    tested: Kernel, build: list[bytes], probe: list[bytes], mask: int
) -> None:
    probe_idx, build_idx = tested.match(
        *column(build), hashes_of(build, mask), *column(probe), hashes_of(probe, mask)
    )
    assert probe_idx.dtype == build_idx.dtype == np.int64
    assert list(zip(probe_idx.tolist(), build_idx.tolist(), strict=True)) == [
        (i, j) for i, p in enumerate(probe) for j, b in enumerate(build) if p == b
    ]


@given(keys=some_keys, mask=hash_masks)
@kernel_settings
def test_sort_keys_orders_by_hash_then_key(tested: Kernel, keys: list[bytes], mask: int) -> None:
    hashes = hashes_of(keys, mask)
    got = tested.sort_keys(*column(keys), hashes)
    assert got.dtype == np.int64
    order = sorted(range(len(keys)), key=lambda i: (int(hashes[i]), keys[i], i))
    assert got.tolist() == order


@given(
    keys=some_keys | st.lists(st.binary(min_size=17, max_size=17), max_size=40),
    wanted=st.lists(st.integers(0, 10**6), max_size=120),
)
@kernel_settings
def test_take_keys_gathers_by_index(tested: Kernel, keys: list[bytes], wanted: list[int]) -> None:
    index = [i % len(keys) for i in wanted] if keys else []
    data, offsets = tested.take_keys(*column(keys), array(index, "i8"))
    assert data.dtype == np.uint8
    assert offsets.dtype == np.int64
    assert as_list(data, offsets) == [keys[i] for i in index]


@pytest.mark.parametrize("length", [0, 1, 2, 8, 16, 17, 18, 100])
def test_take_keys_gathers_keys_of_one_length(tested: Kernel, length: int) -> None:
    rng = np.random.default_rng(length)
    keys = [rng.bytes(length) for _ in range(200)]
    index = rng.integers(0, 200, 500)
    for last in ([], [b"x" * (length + 1)]):
        for some in (index, index[:3].copy()):  # a few of many go another way
            taken = tested.take_keys(*column(keys + last), some)
            assert as_list(*taken) == [keys[i] for i in some.tolist()]
    data, offsets = column([b"skipped", *keys])
    taken = tested.take_keys(misaligned(data), misaligned(offsets[1:]), misaligned(index))
    assert as_list(*taken) == [keys[i] for i in index.tolist()]


@pytest.mark.parametrize("keys", [[], [b"a"], [b"a", b"bc"], [b""] * 3])
def test_take_keys_rejects_an_index_outside_the_column(compiled: Kernel, keys: list[bytes]) -> None:
    for wrong in (len(keys), -1, 2**63 - 1, -(2**63)):
        index = array([0, wrong, wrong] if keys else [wrong], "i8")
        at = len(index) // 2
        with pytest.raises(ValueError, match=rf"index\[{at}\] must be below {len(keys)} and not"):
            compiled.take_keys(*column(keys), index)


@given(
    values=st.lists(
        st.one_of(
            some_key,
            st.uuids().map(lambda u: str(u).encode()),
            st.uuids().map(lambda u: str(u).upper().encode()),
            st.uuids().map(lambda u: str(u).replace("-", "").encode()),
            st.binary(min_size=36, max_size=36),
        ),
        max_size=40,
    )
)
@kernel_settings
def test_uuids_are_encoded_and_decoded(tested: Kernel, values: list[bytes]) -> None:
    data, offsets = tested.encode_uuid(*column(values))
    assert data.dtype == np.uint8
    assert offsets.dtype == np.int64
    assert as_list(data, offsets) == [encode_uuid(value) for value in values]
    assert as_list(*tested.decode_uuid(data, offsets)) == values


def test_decoding_passes_empty_keys_and_rejects_invalid_ones(tested: Kernel) -> None:
    uuid = b"\x01" + bytes(range(16))
    text = b"00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert as_list(*tested.decode_uuid(*column([b"", uuid, b"", b"\0x"]))) == [b"", text, b"", b"x"]
    for bad in (uuid + b"x", uuid[:-1], b"\x01", b"\x02ab"):
        with pytest.raises(ValueError, match="key 1 is none"):
            tested.decode_uuid(*column([uuid, bad]))


def test_every_byte_at_every_place_of_a_uuid_is_encoded_right(tested: Kernel) -> None:
    text = b"01234567-89ab-cdef-0123-456789abcdef"
    values = [text[:i] + bytes([b]) + text[i + 1 :] for i in range(36) for b in range(256)]
    got = as_list(*tested.encode_uuid(*column(values)))
    assert got == [encode_uuid(value) for value in values]


def test_text_that_only_resembles_a_uuid_stays_text(tested: Kernel) -> None:
    text = b"01234567-89ab-cdef-0123-456789abcdef"
    for value in (text[:-1], text[1:], text + b"0", b"0" + text, text + b"\0", text + b"-" + text):
        assert as_list(*tested.encode_uuid(*column([value]))) == [b"\0" + value]
        assert as_list(*tested.encode_uuid(*column([value, text])))[0] == b"\0" + value


def test_all_paths_agree_on_many_keys_and_keys_of_a_megabyte() -> None:
    # Deep radix levels, large tables and long comparisons; all paths must agree.
    rng = np.random.default_rng(11)
    n = 3_000 if SANITIZED else 60_000
    big = rng.bytes(2**20)
    keys = [b"%d" % i for i in rng.integers(0, n // 2, n)] + [big, big[:-1], big, big + b"x"]
    native, numpy = load("native"), load("numpy")
    data, offsets = np.frombuffer(b"".join(keys), np.uint8).copy(), np.zeros(len(keys) + 1, "i8")
    np.cumsum([len(key) for key in keys], out=offsets[1:])
    hashes = native.hash64(data, offsets, KEY)
    seen: dict[bytes, int] = {}
    first = [seen.setdefault(key, i) for i, key in enumerate(keys)]
    for hashes_used in (hashes, hashes & np.uint64(0xFF << 56 | 0xF), hashes >> np.uint64(8)):
        for tested in (native, numpy):
            assert tested.first_occurrence(data, offsets, hashes_used).tolist() == first
        order = native.sort_keys(data, offsets, hashes_used)
        assert (order == numpy.sort_keys(data, offsets, hashes_used)).all()
        small = slice(0, n // 10)
        args = (data, offsets[small], hashes_used[: n // 10 - 1], data, offsets, hashes_used)
        for a, b in zip(native.match(*args), numpy.match(*args), strict=True):
            assert (a == b).all()


def test_results_can_be_written_to(tested: Kernel) -> None:
    args = (*column([b"a", b"a"]), hashes_of([b"a", b"a"]))
    taken = tested.take_keys(*args[:2], array([1], "i8"))
    encoded, _ = tested.encode_uuid(*args[:2])
    for result in (*tested.match(*args, *args), tested.sort_keys(*args), encoded, *taken):
        result[0] = 1


def test_threads_share_arguments() -> None:
    # The loops run without the GIL from 64 KB on.
    native = load("native")
    rng = np.random.default_rng(4)
    n = 20_000
    data, offsets = rng.integers(0, 3, 8 * n, np.uint8), np.arange(n + 1, dtype=np.int64) * 8
    hashes = native.hash64(data, offsets, KEY)
    first = native.first_occurrence(data, offsets, hashes)
    order = native.sort_keys(data, offsets, hashes)

    def work(_: int) -> bool:
        same = native.first_occurrence(data, offsets, hashes) == first
        return bool(same.all() and (native.sort_keys(data, offsets, hashes) == order).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(24)))
