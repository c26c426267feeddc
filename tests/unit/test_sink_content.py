"""What a slice holds counts as a multiset of rows."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dedup.sinks.content import Content, content_of

ROWS = st.lists(st.tuples(st.none() | st.binary(max_size=3), st.integers(-2, 2)), max_size=20)
Row = tuple[bytes | None, int]


def held(rows: list[Row]) -> Content:
    columns = [pa.array([row[0] for row in rows], pa.binary()),
               pa.array([row[1] for row in rows], pa.int64())]  # fmt: skip
    return content_of(pa.RecordBatch.from_arrays(columns, ["value", "n"]))


@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_count(rows: list[Row], rng: object) -> None:
    shuffled = list(rows)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert held(shuffled) == held(rows)


@given(ROWS, ROWS)
def test_two_parts_hold_what_the_whole_holds(one: list[Row], other: list[Row]) -> None:
    assert held(one) + held(other) == held(one + other)


@given(ROWS.filter(bool), st.data())
def test_an_added_removed_or_changed_row_changes_the_hash(
    rows: list[Row], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(rows) - 1))
    value, n = rows[place]
    for other in (
        [*rows, rows[place]],
        rows[:place] + rows[place + 1 :],
        [*rows[:place], (value, n + 1), *rows[place + 1 :]],
    ):
        assert held(other).hash != held(rows).hash


@given(ROWS.filter(bool))
def test_two_copies_do_not_cancel_out(rows: list[Row]) -> None:
    assert held(rows * 2).hash != held([]).hash
    assert held(rows * 2).rows == 2 * len(rows)


def test_an_empty_slice_has_the_empty_content() -> None:
    assert held([]) == Content()
    assert Content().hash == "0" * 32


def test_the_order_of_columns_counts_and_their_names_do_not() -> None:
    one, other = pa.array([1, 2], pa.int64()), pa.array([2, 1], pa.int64())
    both = pa.RecordBatch.from_arrays([one, pa.array([7, 7], pa.int64())], ["a", "b"])
    renamed = pa.RecordBatch.from_arrays([other, pa.array([7, 7], pa.int64())], ["x", "y"])
    turned = pa.RecordBatch.from_arrays([pa.array([7, 7], pa.int64()), one], ["a", "b"])
    assert content_of(both) == content_of(renamed)
    assert content_of(both) != content_of(turned)


def test_the_hash_of_given_rows_never_changes() -> None:
    assert held([(b"x", 1), (None, 2)]).hash == "cda61258cbb557e9c8eb39553cfd31ce"
