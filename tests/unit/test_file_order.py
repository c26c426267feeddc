"""The order of files, and the queries that make Spark keep it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dedup.cli.run.input.files import find_files
from dedup.cli.run.options import RunOptions
from dedup.errors import ConfigError
from dedup.sources.files import file_order
from dedup.sources.files.file_order import FileOrder


def in_order(order: FileOrder, **mtimes_ms: int) -> list[str]:
    return sorted(mtimes_ms, key=lambda path: order.key(mtimes_ms[path], path))


def stretches(order: FileOrder, count: int, **mtimes_ms: int) -> list[str]:
    files = {path: mtimes_ms[path] for path in in_order(order, **mtimes_ms)}
    return ["".join(map(str, stretch)) for stretch in order.stretches(files, count)]


def test_files_of_one_second_are_in_the_order_of_their_names() -> None:
    times = {"a": 2_900, "b": 2_100, "c": 1_999, "d": 3_000}
    assert in_order(FileOrder(), **times) == ["c", "a", "b", "d"]
    assert in_order(FileOrder(newest_first=True), **times) == ["d", "a", "b", "c"]
    assert in_order(FileOrder("name"), **times) == ["a", "b", "c", "d"]


def test_one_query_reads_all_files_that_spark_sorts_in_the_same_order() -> None:
    assert stretches(FileOrder(), 1, a=1_000, b=1_000, c=2_000) == ["abc"]
    assert stretches(FileOrder(newest_first=True), 1, a=2_000, b=2_000, c=1_000) == ["abc"]
    assert stretches(FileOrder("name"), 1, a=1_000, b=1_001, c=9_000) == ["abc"]
    assert stretches(FileOrder(), 1) == []


def test_another_order_needs_a_query_for_each_micro_batch() -> None:
    times = {"a": 1_003, "b": 1_002, "c": 1_001, "d": 1_004}
    assert stretches(FileOrder(), 1, **times) == ["a", "b", "cd"]
    # Within a micro-batch no order matters.
    assert stretches(FileOrder(), 2, **times) == ["ab", "cd"]
    assert stretches(FileOrder(), 3, **times) == ["abcd"]
    assert stretches(FileOrder(), 4, **times) == ["abcd"]


def test_spark_compares_names_as_java_has_them_in_a_uri() -> None:
    for first, second in (("\uff21", "\U0001f600"), ("a b", "a!"), ("ab", "a\u3000")):
        assert stretches(FileOrder(), 1, **{second: 9, first: 9}) == [first, second]


def test_a_query_lists_a_bounded_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_order, "_LISTED", 4)
    times = dict.fromkeys("abcdefg", 1_000)
    assert stretches(FileOrder(), 2, **times) == ["abcd", "efg"]
    assert stretches(FileOrder(), 5, **times) == ["abcde", "fg"]


def test_the_files_of_a_run_are_in_the_requested_order(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for name, seconds in (("b.csv", 1), ("c.csv", 1), ("a.csv", 2)):
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
        os.utime(folder / name, (seconds, seconds))

    def names(**options: object) -> list[str]:
        made = RunOptions.make(
            input=folder, id=("id",), horizon="1 day", output=tmp_path / "out", **options
        )
        return [path.name for path in find_files(made).paths]

    assert names() == ["b.csv", "c.csv", "a.csv"]
    assert names(order_files="name") == ["a.csv", "b.csv", "c.csv"]
    assert names(read_options=(("latestFirst", "true"),)) == ["a.csv", "b.csv", "c.csv"]
    with pytest.raises(ConfigError, match="--order-files"):
        names(order_files="size")
    with pytest.raises(ConfigError, match="--max-late"):
        names(max_late=101)
