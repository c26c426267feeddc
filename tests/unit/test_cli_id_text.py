"""IDs on a command line become the keys that the operator makes of the column."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dedup.errors import ConfigError
from dedup.spark.id_encoding import encode_ids
from dedup.tools.repair.id_text import id_key, id_keys

UUID = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"


@pytest.mark.parametrize(
    ("kind", "text", "value", "arrow"),
    [
        ("string", "order-7", "order-7", pa.string()),
        ("string", UUID, UUID, pa.string()),
        ("string collate UTF8_LCASE", "NULL", "NULL", pa.string()),
        ("tinyint", "-5", -5, pa.int8()),
        ("smallint", "300", 300, pa.int16()),
        ("int", "70000", 70000, pa.int32()),
        ("bigint", "-1", -1, pa.int64()),
        ("decimal(10,2)", "12.50", Decimal("12.50"), pa.decimal128(10, 2)),
        ("boolean", "true", True, pa.bool_()),
        ("binary", "00ff", b"\x00\xff", pa.binary()),
        ("date", "2024-02-29", date(2024, 2, 29), pa.date32()),
        ("timestamp", "2024-01-01T12:00:00.5", datetime(2024, 1, 1, 12, 0, 0, 500_000, UTC),
         pa.timestamp("us", "UTC")),
        ("timestamp", "2024-01-01T12:00:00+02:00", datetime(2024, 1, 1, 10, tzinfo=UTC),
         pa.timestamp("us", "UTC")),
        ("timestamp_ntz", "2024-01-01", datetime(2024, 1, 1), pa.timestamp("us")),
    ],
)  # fmt: skip
def test_text_becomes_the_key_of_one_column(
    kind: str, text: str, value: Any, arrow: pa.DataType
) -> None:
    (key,) = encode_ids([pa.array([value], arrow)]).keys
    assert list(id_key([("id", kind)], [text])) == [key]


def test_texts_become_the_key_of_several_columns_with_a_null() -> None:
    columns = [("shop", "int"), ("number", "bigint"), ("name", "string")]
    arrays = [pa.array([3], pa.int32()), pa.array([None], pa.int64()), pa.array(["x"])]
    assert list(id_key(columns, ["3", "NULL", "x"])) == list(encode_ids(arrays).keys)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "seven"), ("tinyint", "300"), ("decimal(4,2)", "1.234"), ("decimal(4,2)", "x"),
        ("boolean", "yes"), ("binary", "xyz"), ("date", "2024-02-30"), ("timestamp", "noon"),
    ],
)  # fmt: skip
def test_text_that_is_not_a_value_of_the_column_is_rejected(kind: str, text: str) -> None:
    with pytest.raises(ConfigError, match="is not a value of column id"):
        id_key([("id", kind)], [text])


def test_a_wrong_number_of_values_and_interval_ids_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"column of the record ID \(a int\), not 2"):
        id_key([("a", "int")], ["1", "2"])
    with pytest.raises(ConfigError, match=r"IDs of type interval .* cannot be written"):
        id_key([("a", "interval day to second")], ["1"])


def test_a_file_holds_an_id_on_each_line(tmp_path: Path) -> None:
    file = tmp_path / "ids"
    file.write_text('\ufeffa b\n["x"]\n\u2028\n')
    assert list(id_keys([("id", "string")], file)) == [
        id_key([("id", "string")], [text])[0] for text in ("a b", '["x"]', "\u2028")
    ]
    columns = [("id", "string"), ("n", "int")]
    file.write_text('["a", "7"]\n["b", "NULL"]')
    assert list(id_keys(columns, file)) == [
        id_key(columns, texts)[0] for texts in (["a", "7"], ["b", "NULL"])
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a", "Expecting value"),
        ("", "it is empty"),
        ('["a"]', "Give one value for each column"),
        ('["a", 7]', "is a JSON array of texts"),
        ('["a", "x"]', "is not a value of column n"),
    ],
)
def test_a_line_that_is_no_id_is_named(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "ids").write_text(f'["a", "7"]\n{line}\n')
    with pytest.raises(ConfigError, match=f"ids, line 2: .*{reason}"):
        list(id_keys([("id", "string"), ("n", "int")], tmp_path / "ids"))
