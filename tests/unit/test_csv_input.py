"""Plain records by Arrow and all others one by one give the same rows for any text."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.sources.files import csv_input, text_input
from dedup.sources.files.csv_input import CsvFormat, CsvReader
from dedup.sources.files.csv_records import CsvForm, CsvRecord, CsvScanner
from dedup.sources.files.event_times import EventTime
from dedup.sources.files.json_input import JsonFormat
from dedup.sources.files.text_columns import converted
from dedup.sources.files.text_input import TextFormat, TextInput
from dedup.sources.files.text_records import Rows, Unreadable
from dedup.sources.files.text_values import Spelling, Unfit, from_text
from tests.support.ddl import TYPES
from tests.support.pages import Row, table

TEXTS = pa.schema([("a", pa.string()), ("b", pa.string())])
TYPED = pa.schema(
    [("n", pa.int64()), ("id", pa.string()), ("t", pa.timestamp("us", "UTC")),
     ("d", pa.decimal128(10, 2))]
)  # fmt: skip
HEADER = ("ID", "N", "d", "x", "T")


def reader(form: CsvForm | None = None, columns: pa.Schema = TEXTS) -> CsvReader:
    return CsvReader(columns, columns.names, form or CsvForm(), Spelling())


def values(rows: Rows) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows.good.to_pylist()]


def by_both(data: bytes, form: CsvForm | None = None) -> list[tuple[Any, ...]]:
    """Rows as Arrow and as the scanner of single records read them."""
    made = reader(form)
    one_by_one = made._rows(data, made._found(data, is_last=True, has_plain=False))
    assert values(one_by_one) == values(made.read(data))
    assert one_by_one.bad == list(made.read(data).bad)
    return values(one_by_one)


@pytest.mark.parametrize("row", table("csv"), ids=lambda row: row.kind)
def test_each_example_of_the_page_is_read_as_it_says(row: Row) -> None:
    kind, written = TYPES[row.kind], dict(row.kept)
    texts = [*written, *row.rejected]
    data = "".join(f"{number},{text}\n" for number, text in enumerate(texts)).encode()
    columns = pa.schema([("a", pa.int64()), ("b", kind)])
    rows = reader(columns=columns).read(data)
    assert rows.good.column("a").to_pylist() == list(range(len(written)))
    assert len(rows.bad) == len(row.rejected)
    if kind == pa.string():
        assert rows.good.column("b").to_pylist() == list(written.values())


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b'1,"a ""quote"""\n', [("1", 'a "quote"')]),
        (b'1,"two\nlines"\r\n2,"two\r\nlines"\n', [("1", "two\nlines"), ("2", "two\r\nlines")]),
        (b'1,5" pipe\n2,6" pipe\n', [("1", '5" pipe'), ("2", '6" pipe')]),
        (b"1,a\n2,b\r\n3,c\r4,d", [("1", "a"), ("2", "b"), ("3", "c"), ("4", "d")]),
        (b"\n1,a\n\r\n\r2,b\n\n", [("1", "a"), ("2", "b")]),
        (b",\n1,\n,2\n", [(None, None), ("1", None), (None, "2")]),
        (b'1,""\n', [("1", None)]),
        (b"1,a\x00b\n", [("1", "a\x00b")]),
        (b"1, a \n", [("1", " a ")]),
        (b"1,a\\n\\\n", [("1", "a\\n\\")]),
        (b"", []),
    ],
)
def test_a_text_has_one_reading(data: bytes, rows: list[tuple[Any, ...]]) -> None:
    assert by_both(data) == rows


@pytest.mark.parametrize(
    ("form", "data", "rows"),
    [
        (CsvForm(separator="||"), b'1||a|b\n"2||3"||c\n', [("1", "a|b"), ("2||3", "c")]),
        (CsvForm(separator="\t"), b"1\ta\n\t\n", [("1", "a"), (None, None)]),
        (CsvForm(quote=""), b'"1,"a"\n', [('"1', '"a"')]),
        (CsvForm(quote="'", escape="'"), b"'1,2','it''s'\n", [("1,2", "it's")]),
        (CsvForm(escape="\\"), rb'"a\"b","c\\d\n"' + b"\n", [('a"b', "c\\d\\n")]),
        (CsvForm(comment="#"), b"#1,2\n3,#4\n", [("3", "#4")]),
        (CsvForm(null="NA"), b'NA,""\n"NA",\n', [(None, ""), (None, None)]),
        (CsvForm(empty="none"), b'"",\n', [("none", None)]),
        (CsvForm(null="NA"), b'x,y\n"q",', [("x", "y"), ("q", None)]),
        (CsvForm(line_end="|"), b"1,a\nb|2,c\r|", [("1", "a\nb"), ("2", "c\r")]),
        (CsvForm(trims_left=True, trims_right=True), b'1, "a" \n 2 ,b\n', [("1", "a"), ("2", "b")]),
        (
            CsvForm(separator="\t", trims_left=True, trims_right=True),
            b'1\t \n\t"b" \n\t\n 2\tc\n',
            [("1", None), (None, "b"), (None, None), ("2", "c")],
        ),
    ],
)  # fmt: skip
def test_options_define_how_a_text_is_split_into_fields(
    form: CsvForm, data: bytes, rows: list[tuple[Any, ...]]
) -> None:
    assert by_both(data, form) == rows


@pytest.mark.parametrize(
    ("data", "text", "reason"),
    [
        (b'0,x\n1,"a"b\n2,y\n', b'1,"a"b', "text behind the closing quote"),
        (b"0,x\n1\n2,y\n", b"1", "more or fewer columns"),
        (b"0,x\n1,a,b\n2,y\n", b"1,a,b", "more or fewer columns"),
        (b"0,x\n1,\xff\n2,y\n", b"1,\xff", "not valid UTF-8"),
    ],
)
def test_a_bad_record_is_reported_with_its_offset_and_affects_no_other_record(
    data: bytes, text: bytes, reason: str
) -> None:
    assert by_both(data) == [("0", "x"), ("2", "y")]
    (bad,) = reader().read(data).bad
    assert (bad.offset, bad.text) == (4, text)
    assert reason in bad.reason


def test_a_quote_that_never_ends_is_no_record() -> None:
    for form in (CsvForm(), CsvForm(separator="||")):
        with pytest.raises(Unreadable) as error:
            reader(form).read(b'1,a\n2,"b\n3,c\n' if form.is_plain else b'1||a\n2||"b\n')
        assert error.value.args[1] == "a value in quotes has no end"
        assert error.value.args[0] in (4, 5)


def test_a_record_without_an_end_waits_for_more() -> None:
    rows = reader().read(b'1,a\n2,"b\n', is_last=False)
    assert (values(rows), rows.nbytes) == ([("1", "a")], 4)
    # A CR may be the first half of a line end.
    assert reader().read(b"1,a\r", is_last=False).nbytes == 0


ATOMS = [b"a", b"7", b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"\xc3\xa9", b"\xff", b"\0", b"1.5",
         b" ", b"2024-05-01", b"\\", b'x"y', b'"q,r"', b'"a\nb"', b"#", b'"a""b"', b'5" pipe',
         b"NA"]  # fmt: skip
GOOD = [b"o,1,0.25,z,2024-05-01 10:00:00\n", b'"o",2,1,"a\nb",2024-05-01\n', b'o,3,,"q,""r",\r\n']
HOSTILE = st.lists(
    st.one_of(st.sampled_from(GOOD), st.lists(st.sampled_from(ATOMS), max_size=14).map(b"".join)),
    max_size=12,
).map(b"".join)
FORMS = [
    CsvForm(),
    CsvForm(null="NA"),
    CsvForm(empty="E"),
    CsvForm(quote="'", escape="'"),
    CsvForm(quote=""),
]


@settings(max_examples=300, deadline=None)
@given(data=HOSTILE, form=st.sampled_from(FORMS), is_last=st.booleans())
def test_both_ways_agree_about_hostile_text(data: bytes, form: CsvForm, is_last: bool) -> None:
    made = CsvReader(TYPED, HEADER, form, Spelling())

    def outcome(has_plain: bool) -> Any:
        try:
            rows = made._rows(data, made._found(data, is_last=is_last, has_plain=has_plain))
        except Unreadable as error:
            return error.args
        rows.good.validate(full=True)
        spans = rows.spans()
        assert len(spans) == rows.good.num_rows
        return rows.good.to_pylist(), rows.bad, rows.nbytes, spans

    assert outcome(True) == outcome(False)


@settings(max_examples=100, deadline=None)
@given(
    # Python does not quote a CR, which ends a record.
    st.lists(
        st.tuples(
            *[
                st.text(
                    st.characters(exclude_categories=["Cs"], exclude_characters="\r"), min_size=1
                )
            ]
            * 2
        )
    ),
    st.sampled_from(["\n", "\r\n"]),
)
def test_records_that_pythons_csv_module_writes_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], line_end: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator=line_end).writerows(rows)
    assert values(reader().read(path.read_bytes())) == rows


def test_plain_text_goes_to_arrow_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_input.CsvScanner, "record", None)
    data = 'a,b\n"c ""d""",é\n'.encode() * 1000
    assert reader().read(data).good.num_rows == 2000


# --- columns

SEEDS = ["7", "-7", "007", "9223372036854775808", "1.5", "1e3", "1e39", "1e400", "NaN", "Inf",
         "true", "TRUE", "2024-05-01", "2024-02-30", "2024-05-01 10:00:00", "0001-01-01 00:00:00",
         "2024-05-01T10:00:00.123456Z", "2024-05-01 10:00:00.1234567", "2024-03-31 02:30:00",
         "2024-10-27 02:30:00", "2024-05-01 24:00:00", "2024-05-01 23:59:60", "0000-01-01",
         "9999-12-31 23:59:59-02:00", "2024-05-01 10:00:00+18:01", "1,234.5", "", " 7", "0x10",
         ".5", "5.", "+1", "-0", "0E-18", "12345678.12", "2024-05-01 10:00", "é", "1_0", "٣",
         "2024-05-01 10:00:00 Europe/Paris", "3.5e38", "1e-300000000", "nan(1)"]  # fmt: skip
MUTATED = st.tuples(
    st.sampled_from(SEEDS), st.integers(0, 30), st.sampled_from([*"0123456789+-.:TZ eE,x", ""])
).map(lambda each: each[0][: each[1]] + each[2] + each[0][each[1] + 1 :])
KINDS = [*(TYPES[name] for name in TYPES if not pa.types.is_nested(TYPES[name])),
         pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "+08:00"), pa.decimal128(2, 2),
         pa.decimal128(5, 0)]  # fmt: skip


def test_the_search_for_plain_records_after_odd_ones_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, search, searched = reader(), CsvReader._plain_end, list[int]()

    def noted(self: CsvReader, data: bytes, at: int, *given: Any, **more: Any) -> int:
        searched.append(at)
        return search(self, data, at, *given, **more)

    monkeypatch.setattr(CsvReader, "_plain_end", noted)
    odd, plain = b'1,5" pipe\n', b"1,2\n"
    assert len(values(made.read(1_000 * odd + 100_000 * plain))) == 101_000
    assert len(searched) < 30
    assert searched[-1] > 1_000 * len(odd) + 50_000 * len(plain)
    singles, record = list[int](), CsvScanner.record

    def counted(self: CsvScanner, data: bytes, at: int, **more: Any) -> CsvRecord | None:
        singles.append(at)
        return record(self, data, at, **more)

    monkeypatch.setattr(CsvScanner, "record", counted)
    assert len(values(made.read(100 * (odd + 600 * plain)))) == 60_100
    assert len(singles) < 300


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    texts=st.lists(st.one_of(st.sampled_from(SEEDS), MUTATED, st.none()), max_size=80),
)
def test_a_column_has_the_values_of_its_texts(
    kind: pa.DataType, texts: Sequence[str | None]
) -> None:
    spelling = Spelling(time_zone=getattr(kind, "tz", None) or "UTC")
    exact = from_text(kind, spelling)
    column, unfit = converted(pa.array(texts, pa.string()), kind, exact, spelling)
    column.validate(full=True)
    expected, rejected = list[Any](), list[int]()
    for row, text in enumerate(texts):
        try:
            expected.append(None if text is None else exact(text))
        except Unfit:
            expected.append(None)
            rejected.append(row)
    wanted = pa.array(expected, kind)
    assert unfit == rejected
    assert wanted.equals(column) or repr(wanted.to_pylist()) == repr(column.to_pylist())  # NaN


@pytest.mark.parametrize(
    ("pattern", "text", "time"),
    [
        ("dd/MM/yyyy HH:mm", "01/05/2024 10:30", "2024-05-01 10:30:00"),
        ("d.M.yy", "1.5.24", "2024-05-01 00:00:00"),
        ("dd/MMM/yyyy:HH:mm:ss Z", "01/May/2024:10:00:00 +0200", "2024-05-01 08:00:00"),
        ("yyyyMMdd'T'HHmmss[.SSS]XXX", "20240501T100000Z", "2024-05-01 10:00:00"),
        ("yyyyMMdd'T'HHmmss[.SSS]XXX", "20240501T100000.250Z", "2024-05-01 10:00:00.250000"),
        ("yyyy-MM-dd hh:mm a", "2024-05-01 12:15 am", "2024-05-01 00:15:00"),
        ("yyyy-MM-dd HH:mm VV", "2024-05-01 12:15 Europe/Berlin", "2024-05-01 10:15:00"),
        ("yyyy-MM-dd", "2024-02-30", None),
        ("dd/MM/yyyy", "1/5/2024", None),
        ("yyyy-MM-dd", "2024-05-01 10:00", None),
    ],
)
def test_a_pattern_says_how_times_are_spelled(pattern: str, text: str, time: str | None) -> None:
    read = from_text(pa.timestamp("us", "UTC"), Spelling(timestamp=pattern))
    if time is None:
        with pytest.raises(Unfit):
            read(text)
    else:
        assert read(text) == datetime.fromisoformat(time).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [("yyyy-DD", "has DD, and only y, u"), ("HH HH", "twice"), ("yyyy[-MM", "bracket"),
     ("hh:mm", "both h and a")],
)  # fmt: skip
def test_a_pattern_that_cannot_be_read_is_rejected(pattern: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        from_text(pa.timestamp("us", "UTC"), Spelling(timestamp=pattern))


@pytest.mark.parametrize(
    ("form", "column", "times", "unfit"),
    [
        ("seconds",
         ["1714557600", "1714557600.5000004", "x", None, "NaN", "1e300", "99999999999999"],
         ["2024-05-01 10:00:00", "2024-05-01 10:00:00.500000", None, None, None, None, None],
         [2, 4, 5, 6]),
        ("milliseconds", [1714557600123, None, 2**62],
         ["2024-05-01 10:00:00.123000", None, None], [2]),
        ("seconds", [1714557600.25, float("nan")], ["2024-05-01 10:00:00.250000", None], [1]),
        ("seconds", [Decimal("1.5")], ["1970-01-01 00:00:01.500000"], []),
        (None, ["2024-05-01 10:00:00.123456789Z", "10:00", "2024-05"],
         ["2024-05-01 10:00:00.123456", None, None], [1, 2]),
        (None, [date(2024, 5, 1)], ["2024-05-01 00:00:00"], []),
    ],
)  # fmt: skip
def test_event_times_are_made_of_texts_numbers_and_days(
    form: str | None, column: list[Any], times: list[str | None], unfit: list[int]
) -> None:
    made, rejected = EventTime(column="t", form=form, time_zone="UTC").of(pa.array(column))
    expected = [t and datetime.fromisoformat(t).replace(tzinfo=UTC) for t in times]
    assert (made.to_pylist(), sorted(rejected)) == (expected, unfit)


# --- files


def text_format(columns: pa.Schema = TEXTS, **more: Any) -> CsvFormat:
    return CsvFormat(columns=columns, form=CsvForm(), spelling=Spelling(), **more)


def read(
    path: Path, count: int = 1, made: TextFormat | None = None, **more: Any
) -> tuple[list[Any], list[tuple[int, bytes]]]:
    good, bad = list[Any](), list[tuple[int, bytes]]()
    for number in range(count):
        with TextInput(path, made or text_format(**more)) as file:
            for each in file.rows(number, count):
                good += [tuple(row.values()) for row in each.good.to_pylist()]
                bad += [(line, record.text) for line, record in each.bad]
    return good, bad


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(
        st.tuples(
            st.sampled_from(["x", '"a\nb"', '"q""r"', '5" pipe', "", '""', "é" * 20, '"l\r\nm"']),
            st.sampled_from(["1", "2", "3,4"]), st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
        ), max_size=60,
    ),
    block=st.sampled_from([7, 64, 1000]), count=st.integers(1, 9),
)  # fmt: skip
def test_blocks_and_parts_of_a_file_give_the_rows_and_lines_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[str, str, str]],
    block: int,
    count: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "parts.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b\n" + "".join(f"{a},{b}{e}" for a, b, e in records).encode())
    whole = read(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_input, "BLOCK_BYTES", block)
        patch.setattr(csv_input, "_WINDOW_BYTES", 50)
        assert read(path) == whole
        assert read(path, count) == whole
    assert len(whole[0]) + len(whole[1]) == len(records)


@settings(max_examples=40, deadline=None)
@given(
    lines=st.lists(
        st.tuples(
            st.sampled_from(
                ['{"a":"x","b":"y"}', '{"b":"é"}', "[]", '[{"a":"1"},{"a":"2"}]', "{", ""]
            ),
            st.sampled_from(["\n", "\r\n", "\r"]),
        ), max_size=60,
    ),
    block=st.sampled_from([7, 64, 1000]), count=st.integers(1, 9),
)  # fmt: skip
def test_blocks_and_parts_of_json_give_the_rows_and_lines_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]], block: int, count: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "parts.json"
    path.write_bytes("".join(map("".join, lines)).encode())
    as_json = {"made": JsonFormat(columns=TEXTS, spelling=Spelling())}
    whole = read(path, **as_json)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_input, "BLOCK_BYTES", block)
        assert read(path, **as_json) == whole
        assert read(path, count, **as_json) == whole


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("B,more,a\n1,2,3\n")
    assert read(path) == ([("3", "1")], [])
    path.write_text("a,c\n1,2\n")
    with pytest.raises(Unreadable) as error:
        read(path)
    assert error.value.args == (1, "its header has the column 'b' nowhere")
    assert read(path, ignores_header=True) == ([("1", "2")], [])
    assert read(path, has_header=False) == ([("a", "c"), ("1", "2")], [])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_a_file_may_have_another_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "f.csv"
    path.write_text("a,b\né,ü\n", encoding=encoding)
    named = "UTF-8" if encoding == "utf-8-sig" else encoding
    assert read(path, encoding=named) == ([("é", "ü")], [])


def test_half_a_character_at_the_end_stops_the_run(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes("a,b\n1,2\n".encode("utf-16")[:-1])
    with pytest.raises(Unreadable, match="within a character of utf-16"):
        read(path, encoding="utf-16")


def test_a_truncated_gzip_file_stops_the_run(tmp_path: Path) -> None:
    path = tmp_path / "f.csv.gz"
    packed = gzip.compress(b"a,b\n" + b"1,2\n" * 100_000)
    path.write_bytes(packed[:-9])
    with pytest.raises(OSError, match="Truncated"):
        read(path)
    path.write_bytes(packed)
    assert len(read(path)[0]) == 100_000


@pytest.mark.parametrize(("name", "codec"), [("f.csv.GZ", "gzip"), ("f.csv.BZ2", "bz2"),
                                             ("f.csv.Zst", "zstd"), ("f.LZ4", "lz4")])  # fmt: skip
def test_a_packed_file_is_unpacked_by_its_suffix_in_any_case(
    tmp_path: Path, name: str, codec: str
) -> None:
    with pa.CompressedOutputStream(str(tmp_path / name), codec) as file:
        file.write(b"a,b\n1,2\n")
    assert read(tmp_path / name) == ([("1", "2")], [])


@pytest.fixture
def short_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_input, "BLOCK_BYTES", 100)
    monkeypatch.setattr(text_input, "MAX_RECORD_BYTES", 1000)


@pytest.mark.usefixtures("short_records")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("is_json", [False, True])
def test_a_record_that_is_too_long_is_bad_and_affects_no_other(
    tmp_path: Path, line_end: str, is_json: bool, count: int
) -> None:
    path = tmp_path / "f"
    first, last = ("a,b", "4,5") if not is_json else ('{"a":"1","b":"2"}', '{"a":"4","b":"5"}')
    lines = [first, "x" * 2000, *[last] * 100]
    path.write_text(line_end.join(lines) + line_end, newline="")
    made = JsonFormat(columns=TEXTS, spelling=Spelling()) if is_json else text_format()
    good, [(line, text)] = read(path, count, made)
    assert good == [("1", "2")] * is_json + [("4", "5")] * 100
    assert (line, text[:5]) == (2, b"xxxxx")


@pytest.mark.usefixtures("short_records")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("record", ['"{}",3', '"{}', 'x" {}y,3', '"a\\"{}",3'])
def test_no_record_is_looked_for_behind_a_long_record_with_quotes(
    tmp_path: Path, record: str, count: int
) -> None:
    path = tmp_path / "f.csv"
    long = record.format("x" * 2000) if record[0] == "x" else record.format("7,8\n" * 700)
    path.write_text(f"a,b\n1,2\n{long}\n" + "4,5\n" * 300)
    form = CsvForm(escape="\\")
    made = CsvFormat(columns=TEXTS, form=form, spelling=Spelling())
    with pytest.raises(Unreadable, match="a record with quotes is longer than") as raised:
        read(path, count, made)
    assert raised.value.args[0] == 3


@pytest.mark.usefixtures("short_records")
def test_a_header_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("a,b" + "x" * 5000)
    with pytest.raises(Unreadable, match="its header is longer than"):
        read(path)


def test_a_byte_order_mark_within_a_file_is_text(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("a,b\n\ufeff1,x\n2,y\n")
    assert read(path) == ([("\ufeff1", "x"), ("2", "y")], [])


@pytest.mark.parametrize("block", [1, 2, 5, 100])
@pytest.mark.parametrize("line_end", ["|", "||"])
def test_comments_and_empty_lines_at_the_end_of_a_block_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line_end: str, block: int
) -> None:
    monkeypatch.setattr(text_input, "BLOCK_BYTES", block)
    path = tmp_path / "f.csv"
    path.write_text(line_end.join(["a,b", "1,2", "", "#x,y", "3,4", ""]))
    form = CsvForm(line_end=line_end, comment="#")
    made = CsvFormat(columns=TEXTS, form=form, spelling=Spelling())
    assert read(path, 1, made) == ([("1", "2"), ("3", "4")], [])


def test_bytes_without_a_character_make_a_record_bad(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b"a,b\n1,\xc3\xa5\n1,2\n")  # together they would be UTF-8
    good, bad = read(path, encoding="ISO-8859-3")
    assert (good, [line for line, _ in bad]) == ([("1", "2")], [2])


@pytest.mark.parametrize(
    ("text", "kind", "spelling", "value"),
    [
        ("6.942", pa.decimal128(38, 38), Spelling(), Unfit),
        ("0.5", pa.decimal128(38, 38), Spelling(), Decimal("0.5")),
        (
            "2040-07-01 12:00:00",
            pa.timestamp("us", "UTC"),
            Spelling(time_zone="Europe/Berlin"),
            datetime(2040, 7, 1, 10, tzinfo=UTC),
        ),
        ("0000-01-01", pa.date32(), Spelling(date="yyyy-MM-dd"), Unfit),
        ("00-01-01", pa.date32(), Spelling(date="yy-MM-dd"), date(2000, 1, 1)),
        ("5:00", pa.timestamp("us"), Spelling(timestamp_ntz="h:mm[ a]"), Unfit),
        (
            "5:00 PM",
            pa.timestamp("us"),
            Spelling(timestamp_ntz="h:mm[ a]"),
            datetime(1970, 1, 1, 17),
        ),
    ],
)  # fmt: skip
def test_values_that_are_easily_misread_are_exact_or_rejected(
    text: str, kind: pa.DataType, spelling: Spelling, value: Any
) -> None:
    exact = from_text(kind, spelling)
    values, unfit = converted(pa.array([text]), kind, exact, spelling)
    assert (values.to_pylist(), unfit) == (([None], [0]) if value is Unfit else ([value], []))
    if value is Unfit:
        with pytest.raises(Unfit):
            exact(text)
    else:
        assert exact(text) == value


def test_event_times_of_future_days_follow_daylight_saving_time() -> None:
    time = EventTime(column="t", form=None, time_zone="Europe/Berlin")
    made, unfit = time.of(pa.array([date(2040, 7, 1), date(2024, 1, 1), None]))
    assert unfit == []
    assert made.cast(pa.timestamp("us", "UTC")).to_pylist() == [
        datetime(2040, 6, 30, 22, tzinfo=UTC), datetime(2023, 12, 31, 23, tzinfo=UTC), None,
    ]  # fmt: skip


def test_a_number_with_a_huge_exponent_is_no_time() -> None:
    time = EventTime(column="t", form="seconds", time_zone="UTC")
    assert time.of(pa.array(["1e999999999", "1"]))[1] == [0]
