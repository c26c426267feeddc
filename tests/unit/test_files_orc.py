"""ORC files are read by the tasks only where their footers tell that Spark reads the same."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pytest

from dedup.errors import DataError
from dedup.files import orc_input, query
from dedup.files.input_file import BATCH_ROWS
from dedup.files.orc_input import OrcInput
from dedup.files.orc_tail import OrcTail
from dedup.files.scan import Scan
from dedup.files.types import LeftToSpark
from tests.unit.test_files_scan import rows, scan_of, split

ZONED, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some%20file.orc"


def fault(path: Path, table: pa.Table, columns: pa.Schema | None = None, **how: Any) -> str | None:
    orc.write_table(table, str(path), **how)
    return misfit(path, columns or table.schema)


def misfit(path: Path, columns: pa.Schema) -> str | None:
    with OrcInput(str(path)) as file:
        return file.misfit(columns)


def scan(columns: pa.Schema, **changes: Any) -> Scan:
    return scan_of(columns, file_format="orc", **changes)


def patched(path: Path, was: bytes, now: bytes) -> None:
    """Change bytes at the end of a file, where its footers are."""
    data = path.read_bytes()
    assert was in data
    assert len(was) == len(now)
    before, _, behind = data.rpartition(was)
    path.write_bytes(before + now + behind)


def stripes(path: Path, tables: list[pa.Table]) -> None:
    with orc.ORCWriter(str(path), stripe_size=1 << 10, batch_size=1 << 10) as writer:
        for table in tables:
            writer.write(table)


def test_each_stripe_is_read_by_one_part(path: Path) -> None:
    noise = [pa.table({"n": list(range(i, i + 5000)), "b": [os.urandom(8)] * 5000})
             for i in range(0, 50_000, 5000)]  # fmt: skip
    stripes(path, noise)
    with OrcInput(str(path)) as file:
        assert len(file.parts) > 5
    wanted = scan(pa.schema([("n", pa.int64())]))
    for count in (1, 2, 7, 40):
        found = [
            b["n"].to_pylist() for i in range(count) for b in rows(wanted, split(path, i, count))
        ]
        assert Counter(n for part in found for n in part) == Counter(range(50_000))
        assert count == 1 or len(found) > 1


def test_columns_are_found_by_name(path: Path) -> None:
    table = pa.table({"a.b": ["x"], "N": [1], "more": [2], "inner": [{"c.d": 1, "e": [1, None]}]})
    inner = pa.struct([("c.d", pa.int64()), ("e", pa.list_(pa.int64()))])
    orc.write_table(table, str(path))
    columns = pa.schema(
        [("n", pa.int64()), ("a.b", pa.string()), ("none", pa.date32()), ("inner", inner)]
    )
    for some in (columns, pa.schema([columns.field("n")]), pa.schema([columns.field("none")])):
        (batch,) = rows(scan(some), split(path))
        whole = {"n": 1, "a.b": "x", "none": None, "inner": {"c.d": 1, "e": [1, None]}}
        assert batch.to_pylist() == [{name: whole[name] for name in some.names}]


def test_wide_rows_come_in_small_batches(path: Path) -> None:
    table = pa.table({"text": ["x" * 10_000 + str(i) for i in range(5000)]})
    orc.write_table(table, str(path))
    found = rows(scan(table.schema), split(path))
    assert max(batch.num_rows for batch in found) < 2000
    assert pa.Table.from_batches(found).equals(table)
    narrow = pa.table({"n": pa.array(range(BATCH_ROWS + 1), pa.int64())})
    orc.write_table(narrow, str(path))
    assert [b.num_rows for b in rows(scan(narrow.schema), split(path))] == [BATCH_ROWS, 1]


def test_a_stripe_that_would_take_too_much_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"text": ["x" * 1000] * 5000, "n": range(5000), "l": [[b"12"]] * 5000})
    monkeypatch.setattr(orc_input, "_STRIPE_BYTES", 2 << 20)
    assert fault(path, table, compression="zstd") == "a stripe of it takes 4 MiB in memory"
    assert path.stat().st_size < 100_000
    assert misfit(path, table.select(["n", "l"]).schema) is None


LIKE = {
    "instants": (pa.array([1000, 1 << 52, None], ZONED), ZONED),
    "times of day": (pa.array([1001, 1_700_000_000_123_456], LOCAL), ZONED),
    "microseconds": (pa.array([1_001_000], pa.timestamp("ns")), ZONED),
    "nothing": (pa.nulls(2, ZONED), ZONED),
    "times inside": (
        pa.array([[{"t": 7_000_000}], None], pa.list_(pa.struct([("t", pa.timestamp("ns"))]))),
        pa.list_(pa.struct([("t", ZONED)])),
    ),
    "dates": (pa.array([-141_427, 90_000], pa.date32()), pa.date32()),
    "decimal": (pa.array([1]).cast(pa.decimal128(20, 0)), pa.decimal128(20, 0)),
    "map": (pa.array([[("a", [1])]], pa.map_(pa.string(), pa.list_(pa.int32()))),
            pa.map_(pa.string(), pa.list_(pa.int32()))),
}  # fmt: skip
UNLIKE = {
    "wider": (pa.array([1], pa.int32()), pa.int64(), "is int32, where int64 is expected"),
    "other decimal": (
        pa.array([1]).cast(pa.decimal128(20, 0)), pa.decimal128(21, 0), "is decimal128(20, 0)"
    ),
    "no zone": (pa.array([1], LOCAL), LOCAL, "is timestamp[ns], where timestamp[us]"),
    "a zone": (pa.array([1], ZONED), LOCAL, "is timestamp[ns, tz=UTC], where timestamp[us]"),
    "a number": (pa.array([1]), LOCAL, "is int64, where timestamp[us]"),
    "field order": (
        pa.array([{"a": 1, "b": 2}]), pa.struct([("b", pa.int64()), ("a", pa.int64())]),
        "is struct",
    ),
    "old dates": (pa.array([-141_428], pa.date32()), pa.date32(), "holds dates of before 1582"),
    "old times": (pa.array([-1], LOCAL), ZONED, "holds times outside 1970 to 2261"),
    "late times": (
        pa.array([9_214_646_400_001_000], ZONED), ZONED, "holds times outside 1970 to 2261"
    ),
    "old dates inside": (
        pa.array([[{"d": -200_000}]], pa.list_(pa.struct([("d", pa.date32())]))),
        pa.list_(pa.struct([("d", pa.date32())])), "holds dates of before 1582",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "snappy", "zstd"])
def test_values_that_both_read_alike(path: Path, name: str, compression: str) -> None:
    array, wanted = LIKE[name]
    columns = pa.schema([("x", wanted)])
    assert fault(path, pa.table({"x": array}), columns, compression=compression) is None
    (batch,) = rows(scan(columns), split(path))
    assert batch.schema.types == [wanted]
    assert batch["x"].to_pylist() == array.cast(wanted, safe=False).to_pylist()


@pytest.mark.parametrize("name", UNLIKE)
def test_values_that_are_left_to_spark(path: Path, name: str) -> None:
    array, wanted, why = UNLIKE[name]
    told = fault(path, pa.table({"x": array}), pa.schema([("x", wanted)]))
    assert told is not None
    assert told.startswith(f"its column 'x' {why}")
    # Nobody asks for the column.
    assert misfit(path, pa.schema([("y", wanted)])) is None


def test_names_that_are_left_to_spark(path: Path) -> None:
    one = pa.schema([("a", pa.int64())])
    assert fault(path, pa.table({"a": [1], "A": [2]}), one) == (
        "it has 2 columns named 'a', in other case"
    )
    assert fault(path, pa.table({"_col0": [1], "_col1": [2]}), one) == (
        "its columns have no names, as Hive once wrote them"
    )
    assert fault(path, pa.table({"_col0": [1], "a": [2]}), one) is None
    dotted = pa.table({"a": [{"b": 1}], "a.b": [2], "c.d": [3]})
    assert fault(path, dotted) == "its column 'a.b' may be taken for a field of another one"
    assert misfit(path, dotted.select(["a", "c.d"]).schema) is None


def test_names_with_backticks_are_left_to_spark(path: Path) -> None:
    """Java's reader of ORC calls a column `a` that its writer called "a`b"."""
    why = "a name in it has a backtick, from which on Java's reader may drop the rest"
    assert fault(path, pa.table({"n": [1], "a`b": [2]})) == why
    assert misfit(path, pa.schema([("a", pa.int64())])) == why
    assert fault(path, pa.table({"n": [1], "s": [[{"`a": 2}]]})) == why
    assert fault(path, pa.table({"n": pa.array([1]), "s": pa.array(["`"])})) is None


def test_maps_that_may_have_null_as_a_key(path: Path) -> None:
    """pyarrow makes the process end that reads one."""
    table = pa.table({"m": pa.array([[("a", None)]], pa.map_(pa.string(), pa.int32())), "n": [1]})
    table = table.select(["n", "m"])
    assert fault(path, table) is None
    # The statistics of the keys are the last that tell of no nulls; then they tell nothing of them.
    for now in (b"\x18\x02\x50\x01", b"\x18\x02\x58\x00"):
        patched(path, b"\x18\x02\x50\x00", now)
        assert misfit(path, table.schema) == (
            "its column 'm' holds maps with null as a key, or nothing tells that there are none"
        )
        assert misfit(path, table.select(["n"]).schema) is None
        fault(path, table)


def test_texts_of_fixed_length(path: Path) -> None:
    table = pa.table({"x": ["a"]})
    orc.write_table(table, str(path))
    # The only column is a text (7), and becomes a varchar (16).
    patched(path, b"\x22\x08\x08\x07", b"\x22\x08\x08\x10")
    assert misfit(path, table.schema) == "its column 'x' holds texts of a fixed or limited length"


def test_times_of_another_zone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"x": pa.array([1 << 40], LOCAL), "n": [1]})
    columns = pa.schema([("x", ZONED), ("n", pa.int64())])
    assert fault(path, table, columns) is None
    monkeypatch.setenv("TZDIR", str(path.parent))
    assert misfit(path, columns) == (
        f"{path.parent} has no time zones (tzdata), and pyarrow needs them for its times"
    )
    (path.parent / "GMT").touch()
    assert misfit(path, columns) is None
    patched(path, b"GMT", b"UCT")
    assert misfit(path, columns) == (
        f"{path.parent} lacks the time zone UCT, by which its times were written"
    )
    monkeypatch.undo()
    assert misfit(path, columns) is None
    patched(path, b"UCT", b"EST")
    assert misfit(path, columns) == "its times were written in the time zone EST"
    assert misfit(path, pa.schema([("n", pa.int64())])) is None
    patched(path, b"\x1a\x03EST", b"\x22\x03EST")
    unknown = "it does not tell in which time zone its times were written"
    assert misfit(path, columns) == unknown
    assert fault(path, table, columns, compression="lz4") in (None, unknown)


def test_statistics_that_cannot_be_trusted(path: Path) -> None:
    """Of writers before HIVE-8732."""
    table = pa.table({"d": pa.array([0], pa.date32())})
    assert fault(path, table) is None
    patched(path, b"\x30\x06\x82\xf4\x03", b"\x30\x00\x82\xf4\x03")
    assert str(misfit(path, table.schema)).startswith("its column 'd' holds dates of before 1582")
    table = pa.table({"n": ["a"]})
    assert fault(path, table) is None
    patched(path, b"\x30\x06\x82\xf4\x03", b"\x30\x00\x82\xf4\x03")
    assert misfit(path, table.schema) == "its footer does not tell how large its values are"


def test_files_that_only_java_unpacks(path: Path) -> None:
    table = pa.table({"n": [1]})
    orc.write_table(table, str(path))
    # In the postscript: no compression, in blocks of 64 KiB; it becomes Brotli.
    patched(path, b"\x10\x00\x18\x80\x80\x04", b"\x10\x06\x18\x80\x80\x04")
    source = query.SourceFiles(file_format="orc", place=str(path), paths=(path,))
    why = "pyarrow does not read such files: Unknown compression codec 6"
    with pytest.raises(LeftToSpark, match=why):
        query._check_files(source, table.schema)


def test_files_without_rows(path: Path) -> None:
    table = pa.table({"x": pa.array([], LOCAL), "s": pa.array([], pa.string())})
    columns = pa.schema([("x", ZONED), ("s", pa.string())])
    assert fault(path, table, columns) is None
    assert rows(scan(columns), split(path)) == []
    orc.write_table(pa.table({}), str(path))
    assert rows(scan(columns), split(path)) == []


def test_a_file_that_is_not_as_it_was_listed(path: Path) -> None:
    table = pa.table({"n": [1]})
    orc.write_table(table, str(path))
    with pytest.raises(DataError, match=r"some%20file\.orc was written again while"):
        rows(scan(table.schema), split(path, size=1))
    orc.write_table(pa.table({"n": pa.array([1], pa.int32())}), str(path))
    with pytest.raises(DataError, match=r"its column 'n' is int32.*Run again"):
        rows(scan(table.schema), split(path))


def test_damage_is_told_by_name(path: Path) -> None:
    table = pa.table({"n": pa.array(range(1000)), "s": [os.urandom(9).hex()] * 1000})
    orc.write_table(table, str(path), compression="zlib")
    whole = path.read_bytes()
    # In a stream, in the footers, in the last byte, and the rest of it gone.
    for begin, end in ((100, 200), (-60, -40), (-1, None), (500, None)):
        data = bytearray(whole)
        data[begin:end] = b"" if begin == 500 else b"\xff" * len(data[begin:end])
        path.write_bytes(data)
        named = r"some%20file\.orc cannot be read as ORC: "
        with pytest.raises(DataError, match=named) as error:
            rows(scan(table.schema), split(path))
        assert error.value.remedy == "bad-records"


def test_no_bytes_break_the_reader_of_the_tail(path: Path) -> None:
    orc.write_table(pa.table({"n": [1], "t": pa.array([1 << 40], LOCAL), "s": [["a"]]}), str(path))
    with pa.OSFile(str(path)) as source:
        tail = bytes(orc.ORCFile(source).reader.serialized_file_tail())
    for at in range(len(tail)):
        for flip in (1, 0x80, 0xFF):
            data = bytearray(tail)
            data[at] ^= flip
            for some in (bytes(data), tail[:at]):
                try:
                    found = OrcTail.of(some)
                    assert len(list(found.within(0))) <= len(found.columns)
                    found.zone(some)
                except pa.ArrowInvalid:
                    pass
