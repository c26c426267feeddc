"""The records of CSV files are counted as Spark does, or the file is refused with the place."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.cli.run.input import csv_records as module
from dedup.cli.run.input.csv_records import CsvRecords
from dedup.cli.stop import StopRequest
from dedup.errors import ConfigError, DataError

UTF_8_MARK = b"\xef\xbb\xbf"


def told(folder: Path, data: str | bytes, name: str = "a.csv", **settings: str) -> int | str:
    """How many rows there are, or what is wrong."""
    path = folder / name
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    settings = {"header": "true", "escape": '"'} | settings
    counted = []
    for block_bytes in (3, 8 << 20):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "_BLOCK_BYTES", block_bytes)
            try:
                counted.append(CsvRecords(settings).count(path).rows)
            except DataError as error:
                counted.append(str(error).partition(".csv ")[2])
    assert counted[0] == counted[1], "Records reach over the ends of blocks."
    return counted[0]


@pytest.mark.parametrize(
    ("text", "rows"),
    [("", 0), ("id", 0), ("id,x\n", 0), ("id,x\na,1", 1), ("id,x\r\na,1\r\n\r\n\r\nb,2", 2),
     ("id,x\ra,1\rb,2", 2), ("\n \nid,x\n  \na,1\n\t\n", 1), ('id\n""\n"  "\n', 2),
     ('id,x\n"a,""b",\n5" pipe,1\n"a"b,"c"\n "a,1\n"c" ,2\n', 5)],
)  # fmt: skip
def test_the_rows_of_lines(tmp_path: Path, text: str, rows: int) -> None:
    assert told(tmp_path, text) == rows
    assert told(tmp_path, text, "a.csv.gz") == rows
    assert told(tmp_path, UTF_8_MARK + text.encode()) == rows
    assert told(tmp_path, text, header="false") == rows + ("id" in text)


def test_values_with_line_ends(tmp_path: Path) -> None:
    text = 'id,x\n"a\nb",1\n\n  \nc,"\n\r\n"\n'
    assert told(tmp_path, text, multiline="true") == 3
    said = 'has a value in quotes without an end in line 2, where Spark ends the record: "a'
    assert str(told(tmp_path, text)).startswith(said)
    assert told(tmp_path, 'id,x\na,"1\r\n2"\n', linesep="\n", multiline="true") == 1


@pytest.mark.parametrize("row", ['a,"1', '"a', '5" pipe,"1', '"a""', 'a,"', 'x\x1b,"1'])
def test_a_value_without_an_end(tmp_path: Path, row: str) -> None:
    shown = row.replace("\x1b", "\ufffd")
    said = str(told(tmp_path, f"id,x\nb,2\n{row}\n"))
    assert f"in line 3, where Spark ends the record: {shown}. Nothing of it was taken." in said
    assert "--read-option multiLine=true if values have line ends" in said
    said = str(told(tmp_path, f"id,x\nb,2\n{row}\n", multiline="true"))
    assert said.startswith("has a value in quotes without an end in line 3. Nothing")


def test_quotes_behind_backslashes(tmp_path: Path) -> None:
    """As Spark and MySQL write them: else the value would keep all its marks."""
    for row in ('1,"a\\"b"', '"a\\"b",1', '"\\"a\\"",1'):
        for multiline in ("true", "false"):
            said = str(told(tmp_path, f"id,x\n{row}\n", multiline=multiline))
            assert said.startswith("has a quote behind a backslash within a value in line 2.")
            assert "give --read-option escape=\\\\ with a new --output" in said
        assert told(tmp_path, f"id,x\n{row}\n", escape="\\") == 1
    assert "has a quote" in str(told(tmp_path, 'id,x\n1,"a\nb\\"c"\n', multiline="true"))
    assert "escape=" in str(told(tmp_path, 'id,x\n1,"a\\""\n'))
    # At the end of a value, before a doubled quote, or without quotes a backslash is one.
    for row in ('1,"C:\\"', '"C:\\",1', '1,"{""a"":""x\\""y""}"', '1,{"a":"x\\"y"}', '1,"x,""y\\"',
                '1,"C:\\" ', '"C:\\" ,1'):  # fmt: skip
        assert told(tmp_path, f"id,x\n{row}\n") == 1
    assert told(tmp_path, 'id,x\n1,"a\\"b"\n', unescapedquotehandling="STOP_AT_CLOSING_QUOTE") == 1
    blanks = {"ignoreleadingwhitespace": "true"}
    assert "has a quote" in str(told(tmp_path, 'id,x\n1, "a\\"b"\n', **blanks))


def test_quotes_as_the_reader_was_told(tmp_path: Path) -> None:
    for text, settings, rows in (
        ("id|x\na,'1|2\n", {"quote": "'", "sep": "|"}, 1),
        ('id,x\na,"1\n', {"quote": ""}, 1),
        ('id,x\n"a\\"b",1\n', {"escape": "\\"}, 1),
        # Outside of quotes it escapes nothing.
        ('id,x\n"a",C:\\temp\\\n', {"escape": "\\"}, 1),
        ('id,x\na,"1\\"\n', {"escape": ""}, 1),
        ('id,x;"a\\"b",1;', {"escape": "\\", "linesep": ";"}, 1),
        ('id||x\n"a|b"||1\n', {"sep": "||"}, 1),
        ("id,x\n# it's \"so\na,1\n", {"comment": "#"}, 1),
        ('id,x\n#a\n"#b",1\n', {"comment": "#", "multiline": "true"}, 1),
        ("id,x;a,1\n2;;b,3", {"linesep": ";"}, 2),
    ):
        assert told(tmp_path, text, **settings) == rows, text
    for text, settings in (
        ("id|x\na|'1\n2'\n", {"quote": "'", "sep": "|"}),
        ('id\tx\na\t"1\n', {"sep": "\\t"}),
        ('id,x\n"a\\",1\n"', {"escape": "\\"}),
        ('id,x\nC:\\,"one\ntwo"\n', {"escape": "\\"}),
        ('id||x\n"a|b"||"1\n', {"sep": "||"}),
        ('id,x\na, "1\n', {"ignoreleadingwhitespace": "true"}),
    ):
        assert "without an end in line 2" in str(told(tmp_path, text, **settings)), text


@pytest.mark.parametrize("multiline", ["false", "true"])
def test_bytes_that_are_no_text(tmp_path: Path, multiline: str) -> None:
    said = "has bytes in line 3 that are not UTF-8: e9. Nothing of it was taken."
    for line in (b"caf\xe9,1", b'"caf\xe9",1'):
        assert said in str(told(tmp_path, b"id,x\na,1\n" + line + b"\n", multiline=multiline))
    assert "line 1 " in str(told(tmp_path, b"id,caf\xe9\n", multiline=multiline))
    assert "not UTF-8" in str(told(tmp_path, b"id,x\n\xed\xa0\x80,1\n", multiline=multiline))
    assert "not UTF-8" in str(told(tmp_path, b"id,x\na,\xe2\x82", multiline=multiline))
    assert told(tmp_path, b"id,x\ncaf\xe9,1\n", encoding="ISO-8859-1", multiline=multiline) == 1
    assert "not ASCII" in str(told(tmp_path, b"id\n\xe9\n", charset="US-ASCII"))


def test_wide_text(tmp_path: Path) -> None:
    text = 'id,x\n\u00e9,"\u0a0a"\n'
    for name in ("utf-16", "utf-16-be", "utf-32", "utf-32-be"):
        data = text.encode(name)
        encoding = name.removesuffix("-be")
        assert told(tmp_path, data, encoding=encoding, multiline="true") == 1
        with pytest.raises(ConfigError, match="Give --read-option multiLine=true as well"):
            told(tmp_path, data, encoding=encoding, linesep="\n")
    assert told(tmp_path, text.encode("utf-16-le"), encoding="UTF-16LE", linesep="\n") == 1
    said = str(told(tmp_path, text.encode("utf-16-le")[:-5], encoding="UTF-16LE", multiline="true"))
    assert "not UTF-16-LE" in said
    for name in ("no-such", "Shift_JIS"):
        with pytest.raises(ConfigError, match=f"encoding={name}: text in it cannot be checked"):
            told(tmp_path, text, encoding=name)


def test_lines_that_spark_would_skip(tmp_path: Path) -> None:
    said = "has nothing but blanks and separators in line 3, which Spark would skip."
    for text, separator in (("id\tx\na\t1\n\t\n", "\t"), ("id x\na 1\n   \n", " "),
                            ("id\1x\na\0011\n\1\n", "\1"), ("id\na\n  \n", ",")):  # fmt: skip
        assert said.removesuffix(".") in str(told(tmp_path, text, sep=separator))
        assert told(tmp_path, text, sep=separator, multiline="true") == 2


def test_line_ends_of_several_kinds(tmp_path: Path) -> None:
    def said(text: str, **settings: str) -> str:
        return str(told(tmp_path, text, **settings)).partition(". ")[0]

    ends = "has CR within line 2, and its first line ends with LF: readers differ in where the"
    assert said("id,x\na,1\r\nb,2\n", multiline="true").startswith(ends)
    assert "LF within line 3, and" in said("id,x\r\na,1\r\nb,2\n", multiline="true")
    # Spark looks for the first one in quotes as well.
    assert "has CR within line 2" in said('id,"x\ny"\r\na,1\r\n', multiline="true")
    assert told(tmp_path, 'id,x\r\n"a\nb",1\r\n', multiline="true") == 1
    text = 'id,x\r\na,1\r\n"a\r\nb",1\r\n'
    assert said(text, multiline="true").startswith("has CR LF within a value in line 3, which")
    assert told(tmp_path, text, multiline="true", linesep="\r\n") == 2
    for text in ("id,x\na,1\rb,2\n", 'id,x\na,"1\r2"\n'):
        assert said(text).startswith(ends)
    assert "LF within line 2" in said("id,x\ra,1\nb,2\r")
    # Lines end with LF and with CR LF, or with what Windows makes of CR LF.
    for text in ("id,x\na,1\r\nb,2\n", "id,x\r\r\na,1\r\r\nb,2\r\r\n"):
        assert told(tmp_path, text) == 2


def test_a_nul_beside_quotes(tmp_path: Path) -> None:
    assert told(tmp_path, "id,x\na\0b,1\n") == 1
    for multiline in ("true", "false"):
        said = str(told(tmp_path, 'id,x\n"a\0""b",1\n', multiline=multiline))
        assert said.startswith("has a NUL in the record of line 2, which Spark would lose")
    without_quotes = str(told(tmp_path, "id,x\n\0a,1\n", quote=""))
    assert "has a NUL" in without_quotes
    assert "--read-option" not in without_quotes


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="deflate"):
        CsvRecords({}).count(tmp_path / "a.csv.deflate")
    (tmp_path / "a.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(OSError, match="zlib"):
        CsvRecords({}).count(tmp_path / "a.csv.gz")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"id\na\n") + gzip.compress(b"b\n"))
    assert CsvRecords({"header": "true"}).count(tmp_path / "b.csv.gz").rows == 2


def test_a_request_to_stop_ends_the_look(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n")
    stop = StopRequest()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        CsvRecords({}).count(tmp_path / "a.csv", stop)


cells = st.text('",x\n ', max_size=4)


@given(st.lists(st.lists(cells, min_size=2, max_size=2), max_size=6), st.sampled_from([0, 1]))
def test_what_the_csv_module_writes_is_counted(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], quoting: int
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    text = io.StringIO()
    csv.writer(text, quoting=quoting, lineterminator="\n").writerows([["id", "x"], *rows])
    assert told(folder, text.getvalue(), multiline="true") == len(rows)
    if any("\n" in cell for row in rows for cell in row):
        assert "without an end" in str(told(folder, text.getvalue()))
    else:
        assert told(folder, text.getvalue()) == len(rows)
