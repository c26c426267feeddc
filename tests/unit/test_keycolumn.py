"""Text of string IDs, made again of their keys, and keys on the wire. No Spark is started."""

from __future__ import annotations

import gc
import resource
import sys
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dedup.core.keys import Keys
from dedup.spark.executor import wire, worker_memory
from dedup.spark.executor.wire import key_column, restored, text_of, without
from dedup.spark.id_encoding import encode_ids
from dedup.spark.plan import Plan

UUIDS = st.integers(0, 2**128 - 1).map(lambda number: str(UUID(int=number)))
NEARLY = (
    UUIDS.map(str.upper) | UUIDS.map(lambda text: text.replace("-", "")) | UUIDS.map("x{}".format)
)


def plan(*, kind: str = "string", more: int = 0, user_columns: int = 3) -> Plan:
    ids = (("id", "id", kind), *(("n", "n", "bigint"),) * more)
    return cast(Plan, SimpleNamespace(id_columns=ids, user_columns=user_columns))


@settings(deadline=None)
@given(st.lists(UUIDS | NEARLY | st.text(max_size=40) | st.none(), max_size=40))
@example([])
@example([None, ""])
@example([str(UUID(int=n)) for n in range(5)])
def test_text_is_restored_from_its_keys(values: list[str | None]) -> None:
    for kind in (pa.string(), pa.large_string()):
        back = text_of(encode_ids([pa.array(values, kind)]).keys)
        back.validate(full=True)
        assert back.to_pylist() == values


def test_bytes_that_are_not_text_are_restored_from_their_keys() -> None:
    """Spark's strings may hold any bytes."""
    raw = [b"\xff\xfe", b"\x00", b"\x01" * 17, b"g" * 36]
    offsets = pa.array(raw, pa.binary())
    strange = pa.Array.from_buffers(pa.string(), len(raw), offsets.buffers())
    assert text_of(encode_ids([strange]).keys).cast(pa.large_binary()).to_pylist() == raw


@given(st.lists(st.binary(max_size=20), max_size=30) | st.lists(st.binary(min_size=3, max_size=3)))
def test_keys_are_sent_and_read_back(values: list[bytes]) -> None:
    keys = Keys.from_list(values)
    sent = wire.write_keys(keys)
    for data in (sent, sent.to_pybytes()):
        assert list(wire.read_keys(data, len(values))) == values


def test_keys_of_one_length_need_no_offsets() -> None:
    assert wire.write_keys(Keys.from_list([b"abc"] * 100)).size == 4 + 300
    assert wire.write_keys(Keys.from_list([b"abc"] * 99 + [b""])).size == 4 + 400 + 297


def test_only_a_users_plain_string_column_is_left_out() -> None:
    def columns(*names: str) -> pa.Schema:
        return pa.schema([(name, pa.string()) for name in names])

    assert key_column(plan(), columns("a", "b", "id")) == 2
    assert key_column(plan(), columns("a", "b", "c", "id")) is None  # helper of an expression
    assert key_column(plan(), columns("a", "b")) is None
    assert key_column(plan(), columns("id", "id", "a")) is None  # ambiguous
    assert key_column(plan(kind="binary"), columns("id")) is None
    assert key_column(plan(kind="string collate UTF8_LCASE"), columns("id")) is None
    assert key_column(plan(more=1), columns("id", "n")) is None


def test_restored_rows_have_the_users_schema() -> None:
    rows = pa.RecordBatch.from_arrays(
        [pa.array([1, 2]), pa.array(["a", str(UUID(int=7))], pa.string())],
        schema=pa.schema(
            [
                pa.field("n", pa.int64()),
                pa.field("id", pa.string(), nullable=False, metadata={"k": "v"}),
            ]
        ),
    )
    keys = encode_ids([rows.column("id")]).keys
    body = rows.remove_column(1)
    assert without(rows.schema, 1) == body.schema
    back = restored(body, keys, rows.schema, 1)
    assert back.equals(rows, check_metadata=True)
    assert restored(rows, None, rows.schema, None) is rows


def test_the_collector_freezes_once_until_more_modules_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(gc, "freeze", lambda: told.append(len(sys.modules)))
    monkeypatch.setattr(worker_memory, "_modules_frozen", 0)
    worker_memory.freeze_gc()
    worker_memory.freeze_gc()
    assert len(told) == 1
    monkeypatch.setitem(sys.modules, "dedup_never_loaded", cast(Any, object()))
    worker_memory.freeze_gc()
    assert len(told) == 2


def test_freed_memory_goes_back_to_the_system() -> None:
    worker_memory.freeze_gc()
    if worker_memory._resident_bytes() == 0:
        pytest.skip("needs the folder /proc of Linux")
    held = [b"x" * 100_000 for _ in range(3_000)]  # more than it may keep
    used = worker_memory._resident_bytes()
    last = held[-1]
    del held
    worker_memory.release_memory()
    assert worker_memory._resident_bytes() < used - (200 << 20)
    assert len(last) == 100_000


def test_freed_memory_that_may_be_kept_is_used_again() -> None:
    worker_memory.freeze_gc()
    if worker_memory._resident_bytes() == 0:
        pytest.skip("needs the folder /proc of Linux")

    def pages_touched() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        assert len(b"x" * (64 << 20)) == 64 << 20
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    pages_touched()
    assert pages_touched() < 1000


@pytest.mark.parametrize(
    ("most", "asked"),
    [
        (1 << 30, [(-3, 1 << 30), (-1, worker_memory.KEPT_BYTES)]),
        (32 << 20, [(-3, 1 << 30), (-3, 32 << 20), (-1, worker_memory.KEPT_BYTES)]),
        (0, [(-3, 1 << 30), (-3, 32 << 20)]),
    ],
)
def test_limits_that_an_older_c_library_rejects_are_lowered(
    monkeypatch: pytest.MonkeyPatch, most: int, asked: list[tuple[int, int]]
) -> None:
    told: list[tuple[int, int]] = []

    def mallopt(what: int, value: int) -> int:
        told.append((what, value))
        return int(what != -3 or value <= most)

    monkeypatch.setattr(worker_memory, "_set", mallopt)
    worker_memory._keep_freed()
    assert told == asked
