"""What Spark would pass over in a text file is found before, and nothing else is."""

from __future__ import annotations

import csv
import gzip
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.cli.run.input import text_blocks as module
from dedup.cli.run.input.misread import misread, refuse_misread
from dedup.cli.stop import StopRequest
from dedup.errors import DataError


def told(folder: Path, name: str, data: str | bytes, **settings: str) -> str | None:
    path = folder / name
    data = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(data) if name.lower().endswith(".gz") else data)
    return misread(path, settings)


def test_text_is_decoded_as_the_reader_was_told(tmp_path: Path) -> None:
    text = '"\u00e9\n1"\n'
    assert told(tmp_path, "a.csv", text.encode("utf-16"), encoding="UTF-16") is not None
    assert told(tmp_path, "a.csv", '"\u00e9\n1"\n'.encode("latin-1"), charset="ISO-8859-1")
    assert told(tmp_path, "a.csv", text, encoding="no-such") is None, "Spark complains of it"
    assert told(tmp_path, "a.csv", b'\xef\xbb\xbf"id\n"\n') is not None


def test_comments_are_passed_over(tmp_path: Path) -> None:
    assert told(tmp_path, "a.csv", 'id\n# see "x\n1\n', comment="#", multiline="true") is None


def test_what_only_hadoop_can_unpack_is_not_looked_at(tmp_path: Path) -> None:
    assert told(tmp_path, "a.csv.deflate", b'x\x9c"\n') is None
    assert "\ufffd" in (told(tmp_path, "a.csv", 'id\n"\x1b[2J\n') or "")


def test_a_request_to_stop_ends_the_look(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n")
    stop = StopRequest()
    assert misread(tmp_path / "a.csv", {}, stop) is None
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        misread(tmp_path / "a.csv", {}, stop)


@pytest.mark.parametrize(
    ("multiline", "way"),
    [
        ("false", "with a new --output, --read-option multiLine=true where values have"),
        ("true", "a quote is doubled. Where quotes have no meaning, give"),
    ],
)
def test_the_way_out_fits(tmp_path: Path, multiline: str, way: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text('x\n"1\n')
    with pytest.raises(DataError, match=re.escape(way)):
        refuse_misread(path, {"multiline": multiline})


@pytest.mark.parametrize(
    ("row", "is_bad"),
    [('a,"1', True), ('"a', True), ('5" pipe,"1', True), ('"a""', True), ('a,"1"', False),
     ('"a""b",', False), ('5" pipe,1', False), ('"a"b,"c"', False), ('a,"', True),
     (' "a,1', False)],
)  # fmt: skip
def test_values_in_quotes_that_have_no_end_in_their_line(
    tmp_path: Path, row: str, *, is_bad: bool
) -> None:
    text = f"id,x\n{row}\nb,2\n"
    said = told(tmp_path, "a.csv", text)
    if is_bad:
        assert said is not None
        assert said.endswith(f"in line 2, where Spark ends the record: {row}")
    else:
        assert said is None
    within = told(tmp_path, "a.csv", text, multiline="true")
    assert within == ("has a value in quotes without an end in line 2" if is_bad else None)


def test_quotes_as_the_reader_was_told(tmp_path: Path) -> None:
    assert told(tmp_path, "a.csv", "id|x\na|'1\n2'\n", quote="'", sep="|")
    assert told(tmp_path, "a.csv", "id|x\na,'1|2\n", quote="'", sep="|") is None
    assert told(tmp_path, "a.csv", 'id\tx\na\t"1\n', sep="\\t")
    assert told(tmp_path, "a.csv", 'id,x\na,"1\n', quote="") is None
    assert told(tmp_path, "a.csv", 'id,x\n"a\\"b",1\n', escape="\\") is None
    assert told(tmp_path, "a.csv", 'id,x\n"a\\",1\n"', escape="\\")
    # Outside of quotes it escapes nothing.
    assert told(tmp_path, "a.csv", 'id,x\n"a",C:\\temp\\\n', escape="\\") is None
    assert told(tmp_path, "a.csv", 'id,x\nC:\\,"one\ntwo"\n', escape="\\")
    assert told(tmp_path, "a.csv", 'id,x\na,"1\\"\n', escape="") is None
    assert told(tmp_path, "a.csv", 'id,x\na,"1\\"\n', escape="\\")
    assert told(tmp_path, "a.csv", 'id||x\n"a|b"||"1\n', sep="||")
    assert told(tmp_path, "a.csv", 'id||x\n"a|b"||1\n', sep="||") is None
    assert told(tmp_path, "a.csv", 'id,x,y\n5",p,"abc\n6",x"\n')
    assert told(tmp_path, "a.csv", 'id,x\na, "1\n', ignoreleadingwhitespace="true")
    assert told(tmp_path, "a.csv", "id,x\n# it's \"so\na,1\n", comment="#") is None
    assert told(tmp_path, "a.csv", 'id,x\na,"1\n2"\n', multiline="true") is None


def test_what_cannot_be_read_is_left_to_spark(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(b"no gzip")
    assert misread(tmp_path / "a.csv.gz", {}) is None
    assert misread(tmp_path / "gone.csv", {}) is None


cells = st.text('",x\n ', max_size=4)


@given(st.lists(st.lists(cells, min_size=2, max_size=2), max_size=6), st.sampled_from([0, 1]))
def test_just_the_values_with_a_line_end_are_complained_of(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], quoting: int
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    text = io.StringIO()
    csv.writer(text, quoting=quoting, lineterminator="\n").writerows(rows)
    is_cut = any("\n" in cell for row in rows for cell in row)
    for block_bytes in (5, 8 << 20):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "_BLOCK_BYTES", block_bytes)
            said = told(folder, "a.csv", text.getvalue())
            assert (said is not None) is is_cut
            assert told(folder, "a.csv", text.getvalue(), multiline="true") is None
