"""Columns of keys: layout, Arrow, slices and refusals."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.core.keys import Keys

some_keys = st.lists(st.binary(max_size=20), max_size=30)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@given(keys=some_keys, large=st.booleans(), start=st.integers(0, 5), stop=st.integers(0, 5))
def test_a_slice_of_an_arrow_column_is_read_back(
    keys: list[bytes], large: bool, start: int, stop: int
) -> None:
    whole = pa.array(keys, pa.large_binary() if large else pa.binary())
    part = whole.slice(start, max(0, len(keys) - start - stop))
    made = Keys.from_arrow(part)
    assert list(made) == part.to_pylist()
    assert made.offsets[0] == 0
    assert made.offsets[-1] == len(made.data)
    back = made.to_arrow()
    back.validate(full=True)
    assert back.type == pa.large_binary()
    assert back.to_pylist() == part.to_pylist()


def test_bytes_are_never_copied() -> None:
    whole = pa.array([b"skipped", b"one", b"three"], pa.binary())
    made = Keys.from_arrow(whole.slice(1))
    assert address(made.data) == whole.buffers()[2].address + len("skipped")
    assert made.to_arrow().buffers()[2].address == address(made.data)


def test_the_constructor_normalises_its_offsets() -> None:
    data = np.frombuffer(b"..abc...", np.uint8)
    made = Keys(data, np.array([2, 3, 5], np.int64))
    assert list(made) == [b"a", b"bc"]
    assert made.offsets.tolist() == [0, 1, 3]
    assert len(made.data) == 3
    assert address(made.data) == address(data) + 2


def test_keys_are_immutable() -> None:
    data, offsets = np.zeros(3, np.uint8), np.array([0, 3], np.int64)
    made = Keys(data, offsets)
    for array in (made.data, made.offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    data[0] = 1  # the caller's array is unchanged
    with pytest.raises(AttributeError):
        made.data = data  # type: ignore[misc]


@pytest.mark.parametrize("offsets", [[0, 4], [-1, 3], [0, 2, 1]])
def test_offsets_outside_the_data_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="never fall and stay within"):
        Keys(np.zeros(3, np.uint8), np.array(offsets, np.int64))


@pytest.mark.parametrize(
    "array",
    [pa.array([b"a", None, b"b"], kind) for kind in (pa.binary(), pa.large_binary())]
    + [pa.array([], kind) for kind in (pa.string(), pa.int64(), pa.binary(3), pa.binary_view())],
)
def test_nulls_and_other_types_are_rejected(array: pa.Array) -> None:
    with pytest.raises(ValueError, match="cannot be keys"):
        Keys.from_arrow(array)


def test_an_index_outside_the_keys_is_rejected() -> None:
    keys = Keys.from_list([b"a", b"b"])
    assert keys[-1] == b"b"
    for i in (-3, 2):
        with pytest.raises(IndexError):
            keys[i]
    for i in (-1, 2):
        with pytest.raises(ValueError, match="index"):
            keys.take(np.array([i], np.int64))


def test_keys_can_be_pickled_and_their_repr_shows_only_sizes() -> None:
    keys = Keys.from_list([b"a", b"bc"])
    assert list(pickle.loads(pickle.dumps(keys))) == [b"a", b"bc"]
    assert repr(keys) == "Keys(2 keys, 3 bytes)"
