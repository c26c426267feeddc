"""Each type as text in the dialect of `dedup run`, and read back by others."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pytest

from dedup.errors import DataError
from dedup.sinks.files.text_lines import Dialect, csv_head, csv_lines, json_lines
from tests.support.edge_values import SCALARS, TEXTS, batch_of, differences, from_csv, from_json

RUN = Dialect(header=True, escape='"', also_quoted="", null_fields=True)
UTC = pa.timestamp("us", "UTC")
DOUBLES = [1.0, -0.0, 0.1, 1e7, 1e16, 5e-324, math.nan, -math.inf]

#: Values, and their texts in CSV and in JSON. Spark wrote the same, but for numbers with an
#: exponent, such as 1.0E7.
SPELLED: dict[str, tuple[pa.Array, list[str], list[str]]] = {
    "boolean": (pa.array([True, False]), ["true", "false"], ["true", "false"]),
    "bigint": (pa.array([-(2**63), 2**63 - 1]), [str(-(2**63)), str(2**63 - 1)],
               [str(-(2**63)), str(2**63 - 1)]),
    "double": (pa.array(DOUBLES),
               ["1.0", "-0.0", "0.1", "10000000.0", "1e+16", "5e-324", "NaN", "-Infinity"],
               ["1.0", "-0.0", "0.1", "10000000.0", "1e+16", "5e-324", '"NaN"', '"-Infinity"']),
    "float": (pa.array([0.1, 16777216.0, math.inf], pa.float32()),
              ["0.1", "16777216.0", "Infinity"], ["0.1", "16777216.0", '"Infinity"']),
    "decimal": (pa.array([Decimal("1.50"), Decimal("0.00"), Decimal("-9.99")]),
                ["1.50", "0.00", "-9.99"], ["1.50", "0.00", "-9.99"]),
    "small decimal": (pa.array([Decimal("1E-38"), Decimal("0E-38")], pa.decimal128(38, 38)),
                      ["1E-38", "0E-38"], ["1E-38", "0E-38"]),
    "date": (pa.array([date(1, 1, 1), date(9999, 12, 31)]), ["0001-01-01", "9999-12-31"],
             ['"0001-01-01"', '"9999-12-31"']),
    "timestamp": (pa.array([datetime(2024, 5, 1, 10), datetime(1969, 12, 31, 23, 59, 59, 1)], UTC),
                  ["2024-05-01T10:00:00.000000Z", "1969-12-31T23:59:59.000001Z"],
                  ['"2024-05-01T10:00:00.000000Z"', '"1969-12-31T23:59:59.000001Z"']),
    "timestamp_ntz": (pa.array([datetime(1, 1, 1)], pa.timestamp("us")),
                      ["0001-01-01T00:00:00.000000"], ['"0001-01-01T00:00:00.000000"']),
    "string": (pa.array(["", " a ", "a,b", "#", 'say "x"', "\\", "a\r\nb", "\0\t", "é\u2028"]),
               ['""', " a ", '"a,b"', "#", '"say ""x"""', "\\", '"a\r\nb"', "\0\t", "é\u2028"],
               ['""', '" a "', '"a,b"', '"#"', r'"say \"x\""', r'"\\"', r'"a\r\nb"',
                r'"\u0000\t"', '"é\u2028"']),
}  # fmt: skip
NESTED: dict[str, tuple[pa.DataType, list[Any], list[str]]] = {
    "binary": (pa.binary(), [b"ab", b""], ['"YWI="', '""']),
    "array": (pa.list_(pa.int32()), [[1, None], []], ["[1,null]", "[]"]),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))]),
               [{"a": None, "b": {"c": None}}, {"a": 1, "b": None}],
               ['{"a":null,"b":{"c":null}}', '{"a":1,"b":null}']),
    "map": (pa.map_(pa.string(), pa.float64()), [[("k", 1.0), ('"', None)], []],
            [r'{"k":1.0,"\"":null}', "{}"]),
    "map of days": (pa.map_(pa.date32(), pa.int32()), [[(date(2024, 5, 1), 1)]],
                    ['{"2024-05-01":1}']),
    "map of whole numbers": (pa.map_(pa.int32(), pa.bool_()), [[(7, True)]], ['{"7":true}']),
}  # fmt: skip


def csv_text(dialect: Dialect = RUN, **columns: Any) -> str:
    rows = pa.record_batch(columns)
    return (csv_head(rows.schema, dialect) + csv_lines(rows, dialect)).decode()


@pytest.mark.parametrize("name", SPELLED)
def test_values_of_each_type_are_written_as_csv_and_json(name: str) -> None:
    values, in_csv, in_json = SPELLED[name]
    values = pa.concat_arrays([values, pa.nulls(1, values.type)])
    rows = pa.record_batch({"n": pa.array(range(len(values))), "v": values})
    lines = "".join(f"{n},{text}\n" for n, text in enumerate([*in_csv, ""]))
    assert csv_lines(rows, RUN).decode() == lines
    lines = "".join(f'{{"n":{n},"v":{text}}}\n' for n, text in enumerate([*in_json, "null"]))
    assert json_lines(rows, RUN).decode() == lines


@pytest.mark.parametrize("name", NESTED)
def test_nested_values_are_written_as_json(name: str) -> None:
    kind, values, texts = NESTED[name]
    rows = pa.record_batch({"v": pa.array([*values, None], kind)})
    assert json_lines(rows, RUN).decode().splitlines() == [
        f'{{"v":{text}}}' for text in [*texts, "null"]
    ]


def test_a_null_is_an_empty_field_or_an_empty_text_in_a_single_column() -> None:
    assert csv_text(a=[None, "", "x"], b=["1", "2", None]) == 'a,b\n,1\n"",2\nx,\n'
    assert csv_text(a=[None, "", "x"]) == 'a\n""\n""\nx\n'
    assert csv_text(a=pa.array([None, 1])) == 'a\n""\n1\n'
    quote = Dialect(header=True, quote="'", escape="'", also_quoted="")
    assert csv_text(quote, a=["", None, '""'], b=["it's", "x", "y"]) == (
        "a,b\n'','it''s'\n,x\n\"\",y\n"
    )


def test_a_line_that_begins_like_a_comment_is_quoted() -> None:
    columns = {"#a": ["# x", "a#"], "#b": ["# x", "#"]}
    assert csv_text(**columns) == '"#a",#b\n"# x",# x\na#,#\n'


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"separator": ";"}, 'a;b\n1.5;",;"\n'),
        ({"separator": "\t"}, 'a\tb\n1.5\t,;\n'),
        ({"separator": ".;"}, 'a.;b\n"1.5".;,;\n'),
        ({"separator": ";;"}, 'a;;b\n1.5;;",;"\n'),
        ({"separator": "."}, 'a.b\n"1.5".,;\n'),
        ({"separator": "§", "header": False}, "1.5§,;\n"),
        ({"quote": "'"}, "a,b\n1.5,',;'\n"),
    ],
)  # fmt: skip
def test_separators_and_quotes_follow_the_options(options: dict[str, Any], text: str) -> None:
    dialect = Dialect(**{"header": True, "also_quoted": ""} | options)
    assert csv_text(dialect, a=pa.array([1.5]), b=[",;"]) == text


def test_an_escape_that_is_not_the_quote_is_escaped_in_quotes() -> None:
    back = Dialect(also_quoted="")
    assert csv_text(back, a=["\\", "\\,", '\\"', '"']) == '\\\n"\\\\,"\n"\\\\\\""\n"\\""\n'
    none = Dialect(escape="", also_quoted="")
    assert csv_text(none, a=['"', "\\,"]) == '""""\n"\\,"\n'


def test_without_quotes_a_separator_in_a_text_is_refused() -> None:
    no_quote = Dialect(header=True, quote="", escape='"', also_quoted="")
    assert csv_text(no_quote, a=["#", '"x"', ""], b=["\0", None, "y"]) == (
        'a,b\n#,\0\n"x",\n"",y\n'
    )
    for text in ("a,b", "a\nb", "\r"):
        with pytest.raises(DataError, match="Column 'b' has a text with a separator"):
            csv_text(no_quote, a=["x"], b=[text])


@pytest.mark.parametrize("lines", [csv_lines, json_lines])
def test_texts_that_are_not_utf8_and_years_are_refused(lines: Any) -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
    with pytest.raises(UnicodeDecodeError):
        lines(pa.record_batch({"n": pa.array([1]), "a": broken}), RUN)
    for far in (pa.array([2_932_897], pa.date32()), pa.array([-(2**60)], UTC)):
        with pytest.raises(DataError, match="Column 'a' has a date or time outside"):
            lines(pa.record_batch({"n": pa.array([1]), "a": far}), RUN)


def test_python_and_pyarrow_read_the_same_values() -> None:
    texts = [*TEXTS, None]
    rows = pa.record_batch({"n": pa.array(range(len(texts))), "t": pa.array(texts)})
    head, data = csv_head(rows.schema, RUN), csv_lines(rows, RUN)
    found = list(csv.reader(io.StringIO((head + data).decode(), newline=""), strict=True))
    assert found == [["n", "t"], *([str(n), t or ""] for n, t in enumerate(texts))]
    table = pa.csv.read_csv(
        io.BytesIO(head + data),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            column_types=rows.schema, strings_can_be_null=True, quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )  # fmt: skip
    assert table["t"].to_pylist() == texts
    lines = json_lines(rows, RUN)
    assert [json.loads(line)["t"] for line in lines.decode().split("\n")[:-1]] == texts
    assert pa.json.read_json(io.BytesIO(lines))["t"].to_pylist() == texts


def test_edge_values_are_read_back(tmp_path: Any) -> None:
    pytest.importorskip("duckdb")
    rows = batch_of(edge for edge in SCALARS if edge.spark != "binary")
    path = tmp_path / "x.csv"
    path.write_bytes(csv_head(rows.schema, RUN) + csv_lines(rows, RUN))
    assert differences(from_csv(tmp_path, rows.schema, escape='"'), rows) == []
    path.write_bytes(json_lines(rows, RUN))
    assert differences(from_json(tmp_path, rows.schema), rows) == []
