"""What the sinks into databases do with a record that does not fit."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dedup.errors import DataError
from dedup.sinks.kit.database import converted, rejected_record


def by_column(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Reject texts of more than two characters, then numbers below 0."""
    if any(len(text) > 2 for text in rows["text"].to_pylist()):
        raise rejected_record("Column 'text': too long.")
    if any(number < 0 for number in rows["number"].to_pylist()):
        raise rejected_record("Column 'number': below 0.")
    return rows


def table(texts: list[str], numbers: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"text": texts, "number": numbers})


@pytest.mark.parametrize(
    ("texts", "numbers", "error"),
    [
        (["a", "b", "long"], [1, -2, 3], r"'number': below 0\..*\"number\": -2"),
        (["a", "long", "b"], [1, 2, -3], r"'text': too long\..*\"text\": \"long\""),
        (["long"], [1], r"'text': too long\..*\"text\": \"long\""),
    ],
)
def test_the_error_is_about_the_record_that_it_shows(
    texts: list[str], numbers: list[int], error: str
) -> None:
    with pytest.raises(DataError, match=error):
        converted(table(texts, numbers), by_column)


def test_rows_that_fit_are_converted_at_once() -> None:
    rows = table(["a", "b"], [1, 2])
    assert converted(rows, by_column) is rows
