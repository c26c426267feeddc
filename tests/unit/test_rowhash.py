"""Row hashes depend on values alone, and on all of them."""

from __future__ import annotations

import struct
import zlib
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dedup.spark.executor.rowhash import hash_rows

KEY = bytes(range(16))
MAP = pa.map_(pa.string(), pa.int32())
DEEP = pa.list_(pa.struct([("t", pa.timestamp("us", "America/New_York")), ("m", MAP)]))


def hashes(values: list[Any], kind: pa.DataType) -> list[int]:
    found: list[int] = hash_rows(pa.table({"c": pa.array(values, kind)}), KEY).tolist()
    return found


DISTINCT = [
    (pa.string(), ["", "a", "b", None, "a\0"]),
    (pa.binary(), [b"", b"a", None]),
    (pa.int64(), [0, 1, -1, None]),
    (pa.bool_(), [True, False, None]),
    (pa.float64(), [0.0, 1.0, float("nan"), None, float("inf")]),
    (pa.decimal128(38, 2), [Decimal("0.00"), Decimal("-1.10"), None]),
    (pa.list_(pa.int32()), [[], [0], [0, 0], [None], None, [1, 2], [2, 1]]),
    (pa.list_(pa.list_(pa.int32())), [[[1], [2]], [[1, 2]], [[1, 2], []], [[], [1, 2]]]),
    (pa.struct([("x", pa.int32()), ("y", pa.string())]), [
        {"x": 1, "y": "a"}, {"x": 1, "y": None}, {"x": None, "y": None}, None, {"x": 2, "y": "a"},
    ]),
    (MAP, [[], [("a", 1)], [("a", None)], [("a", 1), ("b", 2)], [("a", 2), ("b", 1)], None]),
    (DEEP, [
        [{"t": 0, "m": [("a", 1)]}],
        [{"t": 1, "m": [("a", 1)]}],
        [{"t": -62135596800000000, "m": []}],
        [{"t": 253402300799999999, "m": None}],
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values"), DISTINCT, ids=lambda v: str(v)[:30])
def test_different_values_have_different_hashes(kind: pa.DataType, values: list[Any]) -> None:
    assert len(set(hashes(values, kind))) == len(values)


@pytest.mark.parametrize(("kind", "values"), DISTINCT, ids=lambda v: str(v)[:30])
def test_layout_does_not_matter(kind: pa.DataType, values: list[Any]) -> None:
    whole = hashes(values, kind)
    padded = pa.array([values[-1], *values, values[0]], kind).slice(1, len(values))
    assert hash_rows(pa.table({"c": padded}), KEY).tolist() == whole
    chunks = pa.chunked_array([pa.array([value], kind) for value in values])
    assert hash_rows(pa.table({"c": chunks}), KEY).tolist() == whole


def test_equal_values_in_other_forms_have_one_hash() -> None:
    odd_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000123))[0]
    one, other, zero, minus = hashes([float("nan"), odd_nan, 0.0, -0.0], pa.float64())
    assert (one, zero) == (other, minus)
    one, other = hashes([[("a", 1), ("b", 2)], [("b", 2), ("a", 1)]], MAP)
    assert one == other


def test_every_column_and_the_hash_key_affect_the_hash() -> None:
    table = pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"]})
    assert len(set(hash_rows(table, KEY).tolist())) == 3
    assert not np.array_equal(hash_rows(table, KEY), hash_rows(table, bytes(16)))


def test_a_null_list_may_hide_elements() -> None:
    ends, mask = pa.array([0, 1, 3, 4], pa.int32()), pa.array([False, True, False])
    hiding = pa.ListArray.from_arrays(ends, pa.array([1, 7, 8, 2]), mask=mask)
    plain = hashes([[1], None, [2]], pa.list_(pa.int64()))
    assert hash_rows(pa.table({"c": hiding}), KEY).tolist() == plain


def test_the_encoding_stays_as_it_is() -> None:
    """Digests of payloads outlive the release that made them."""
    every = [hashes(values, kind) for kind, values in DISTINCT]
    found = zlib.crc32(np.array([h for each in every for h in each], "<u8").tobytes())
    assert found == 1_025_186_894, (
        "another encoding is another _PAYLOAD_ENCODING of dedup.catalog.definition"
    )
