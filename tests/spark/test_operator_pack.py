"""Packed bytes depend on the rows and nothing else (invariant 6). No Spark session is started."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dedup.catalog.definition import Definition
from dedup.core.admission import FLAG_NULL_ID, FLAG_NULL_TIME, FLAG_UNTIMED, Handling
from dedup.core.clocks import NEVER_MS, Observed
from dedup.core.policy import Policy
from dedup.core.sharding import derive_keys, payload_key, slot_keys
from dedup.errors import ConfigError, DataError, ExecutorError
from dedup.spark.executor import pack, wire
from dedup.spark.executor.call import ShardInput
from dedup.spark.executor.layout import Layout
from dedup.spark.executor.pack import Packer
from dedup.spark.executor.task import Task
from dedup.spark.executor.wire import key_column, restored, without
from dedup.spark.idtime import time_from_id
from dedup.spark.plan import Plan, TimeSource
from tests.support.processes import run_python

BASE = datetime(2024, 1, 1, tzinfo=UTC)
SHARDS = 3
#: Of rows that are compressed: all of these, none.
WIDTHS = (0, 1 << 20)
EVENT = Policy(horizon_ms=86_400_000, bucket_ms=3_600_000, event_time=True)
TIME = TimeSource("column ts timestamp", Definition(expression="ts", kind="timestamp"), "ts")
SOURCED = replace(EVENT, source_columns=("source",))


def plan(**changes: Any) -> Plan:
    given: dict[str, Any] = {
        "id_columns": (("id", "id", "string"),),
        "id_definitions": (Definition(expression="id", kind="string"),),
        "time": TIME, "accepted": (), "now_column": "now", "source_columns": (),
        "order_columns": (), "user_columns": 10, "body_columns": 10,
        "handling": Handling(null_timestamps="now"), "emitted": frozenset({"unique"}),
        "max_future_ms": 600_000, "shards": SHARDS,
        "policy": EVENT, "root": None, "cache_dir": None,
        "cache_bytes": 1, "max_shard_batch_bytes": 1 << 30, "start_id": str(UUID(int=0)),
    }  # fmt: skip
    return Plan(**(given | changes))


def layout() -> Layout:
    return Layout(slot_keys(SHARDS, 2), *derive_keys("some query"), payload_key("some query"))


def rows(count: int) -> pa.RecordBatch:
    """Rows of many types; every third value is null."""

    def column(kind: pa.DataType, value: Any) -> pa.Array:
        return pa.array([None if n % 3 == 2 else value(n) for n in range(count)], kind)

    return pa.RecordBatch.from_pydict(
        {
            "id": column(pa.string(), lambda n: f"id-{n // 2}"),
            "ts": column(pa.timestamp("us", "UTC"), lambda n: BASE + timedelta(seconds=n)),
            "flag": column(pa.bool_(), lambda n: n % 2 == 0),
            "small": column(pa.int8(), lambda n: n % 100),
            "price": column(pa.decimal128(38, 10), lambda n: Decimal(n) / 8),
            "real": column(pa.float64(), lambda n: n / 3),
            "list": column(pa.list_(pa.string()), lambda n: ["x" * (n % 5), None]),
            "map": column(pa.map_(pa.string(), pa.int32()), lambda n: [("k", n), ("l", None)]),
            "struct": column(
                pa.struct([("a", pa.int16()), ("b", pa.binary())]), lambda n: {"a": n, "b": None}
            ),
            "nothing": column(pa.date32(), lambda n: None),
            "now": pa.array([BASE + timedelta(days=1)] * count, pa.timestamp("us", "UTC")),
        }
    )


def packed(batches: list[pa.RecordBatch], made: Plan | None = None) -> list[dict[str, Any]]:
    packer = Packer(made or plan(), layout())
    sent = []
    for batch in batches:
        packer.add(batch)
        if packer.full:
            sent += list(packer.flush())
    sent += [*packer.flush(), packer.control_rows()]
    return [row for batch in sent for row in batch.to_pylist()]


def heads(sent: list[dict[str, Any]], column: str, *, with_sources: bool = False) -> list[int]:
    """What the heads of all blobs hold in a column, sorted."""
    schema = wire.head_schema(plan(source_columns=("source",) if with_sources else ()))
    blobs = (wire.read_batch(row["head"], schema) for row in sent if row["rows"] != wire.CONTROL)
    return sorted(value for head in blobs for value in head[column].to_pylist())


def unpacked(row: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a blob, given their schema."""
    in_keys = key_column(plan(), schema)
    assert in_keys == 0
    body = wire.read_batch(row["body"], without(schema, in_keys))
    assert body.schema.names == schema.names[1:]
    return restored(body, wire.read_keys(row["keys"], row["rows"]), schema, in_keys)


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in separate memory."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    (copy,) = pa.ipc.open_stream(pa.py_buffer(sink.getvalue().to_pybytes()))
    return copy


def garbled(column: pa.Array, rng: np.random.Generator) -> pa.Array:
    """The same column with other bytes where it is null."""
    if pa.types.is_struct(column.type):
        children = [garbled(column.field(i), rng) for i in range(column.type.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(column.type), mask=column.is_null())
    if not pa.types.is_primitive(column.type) and not pa.types.is_decimal(column.type):
        return column
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if valid.all():
        return column
    bits, values = (np.frombuffer(b, np.uint8).copy() for b in column.buffers())
    if pa.types.is_boolean(column.type):
        held = np.unpackbits(values, bitorder="little")
        held[: len(valid)][~valid] = rng.integers(0, 2, (~valid).sum())
        held[len(valid) :] = 1
        values = np.packbits(held, bitorder="little")
    else:
        width = column.type.bit_width // 8
        held = values[: len(valid) * width].reshape(-1, width)
        held[~valid] = rng.integers(1, 255, ((~valid).sum(), width))
    held = np.unpackbits(bits, bitorder="little")
    held[len(valid) :] = 1
    bits = np.packbits(held, bitorder="little")
    return pa.Array.from_buffers(
        column.type, len(column), [pa.py_buffer(bits), pa.py_buffer(values)]
    )


@pytest.mark.parametrize("wide", WIDTHS, ids=["compressed", "plain"])
def test_the_same_rows_give_the_same_bytes(wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "WIDE_ROW_BYTES", wide)
    batch = rows(1001)
    wide = pa.concat_batches([rows(13), batch, rows(5)])
    rng = np.random.default_rng(0)
    poisoned = pa.RecordBatch.from_arrays(
        [garbled(column, rng) for column in batch.columns], schema=batch.schema
    )
    assert poisoned.equals(batch)
    assert poisoned["price"].buffers()[1] != batch["price"].buffers()[1]
    expected = packed([batch])
    for again in (copied(batch), wide.slice(13, 1001), poisoned, batch.take(pa.array(range(1001)))):
        assert packed([again]) == expected


def test_the_packed_bytes_do_not_depend_on_arrow_batches() -> None:
    """Spark cuts its Arrow batches by bytes; a shard's blobs gather across them."""
    batch = rows(900)
    expected = packed([batch])
    pieces = [batch.slice(start, 100) for start in range(0, 900, 100)]
    assert packed(pieces) == expected
    assert packed([copied(piece) for piece in pieces]) == expected
    assert packed([batch.slice(0, 1), batch.slice(1, 899)]) == expected


def test_swapped_rows_give_different_bytes() -> None:
    """The control: the comparison of packed bytes can fail."""
    batch = rows(300)
    order = np.arange(300)
    order[[6, 7]] = order[[7, 6]]
    assert packed([batch.take(pa.array(order))]) != packed([batch])


def digests() -> list[str]:
    """Of the same rows, compressed and plain."""
    found = []
    for width in WIDTHS:
        with patch.object(wire, "WIDE_ROW_BYTES", width):
            found.append(hashlib.sha256(repr(packed([rows(777)])).encode()).hexdigest())
    return found


def test_no_uninitialised_memory_is_sent() -> None:
    """The C library fills fresh memory with another byte in each process; the bytes agree."""
    code = """
import hashlib, json, pyarrow as pa
from tests.spark.test_operator_pack import digests
canary = pa.allocate_buffer(4096).to_pybytes()
print(json.dumps([pa.default_memory_pool().backend_name, digests(),
                  hashlib.sha256(canary).hexdigest()]))
"""
    told = [
        run_python(code, ARROW_DEFAULT_MEMORY_POOL="system", MALLOC_PERTURB_=str(byte))
        for byte in (1, 85, 254)
    ]
    assert {backend for backend, _, _ in told} == {"system"}
    if len({canary for _, _, canary in told}) < 3:
        pytest.skip("needs glibc, whose MALLOC_PERTURB_ fills fresh memory")
    assert [found for _, found, _ in told] == [digests()] * 3


def test_every_row_is_sent_once_and_comes_back() -> None:
    batch = rows(500)
    schema = batch.schema
    sent = packed([batch.slice(0, 200), batch.slice(200)])
    control = [row for row in sent if row["rows"] == wire.CONTROL]
    blobs = [row for row in sent if row["rows"] != wire.CONTROL]
    assert sorted(row["shard"] for row in control) == sorted(layout().slot_keys)
    assert len({(row["head"], row["body"]) for row in control}) == 1
    user = wire.read_schema(control[0]["body"])
    assert user == pa.schema(list(schema)[:10])
    back = [unpacked(row, user) for row in blobs]
    assert [row["rows"] for row in blobs] == [piece.num_rows for piece in back]
    given = sorted(map(repr, batch.select(range(10)).to_pylist()))
    assert sorted(map(repr, (row for piece in back for row in piece.to_pylist()))) == given
    # Copies of an ID meet in one shard; so do equal rows without an ID.
    where: dict[str | None, set[int]] = {}
    for row, piece in zip(blobs, back, strict=True):
        head = wire.read_batch(row["head"], wire.head_schema(plan()))
        flags = head["flags"].to_numpy()
        for name, flag in zip(piece["id"].to_pylist(), flags, strict=True):
            assert bool(flag & FLAG_NULL_ID) == (name is None)
            where.setdefault(name, set()).add(row["shard"])
    assert all(len(shards) == 1 for shards in where.values())


def test_only_wide_rows_are_compressed() -> None:
    narrow = pa.RecordBatch.from_pydict({"n": range(1000)})
    assert wire.write_body(narrow) == narrow.serialize()
    wide = pa.RecordBatch.from_pydict({"text": ["a word " * 20] * 1000})
    assert wire.write_body(wide).size < wide.nbytes / 10
    for batch in (narrow, wide):
        assert wire.read_batch(wire.write_body(batch), batch.schema).equals(batch)


def test_rows_with_only_an_id_come_back() -> None:
    batch = rows(100)
    made = plan(user_columns=1, body_columns=1)
    sent = packed([batch.select(["id", "ts", "now"])], made)
    user = wire.read_schema(sent[-1]["body"])
    assert user.names == ["id"]
    ids = [
        name
        for row in sent
        if row["rows"] != wire.CONTROL
        for name in unpacked(row, user).column("id").to_pylist()
    ]
    assert sorted(map(repr, ids)) == sorted(map(repr, batch.column("id").to_pylist()))


def test_blobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are rows of a blob, and bytes gathered before sending."""
    monkeypatch.setattr(pack, "MAX_BLOB_ROWS", 50)
    sent = packed([rows(600)])
    counts = [row["rows"] for row in sent if row["rows"] != wire.CONTROL]
    assert max(counts) == 50
    assert sum(counts) == 600
    monkeypatch.setattr(pack, "BUFFER_BYTES", 1)
    packer = Packer(plan(), layout())
    assert not packer.full
    packer.add(rows(1))
    assert packer.full


def test_a_map_task_without_rows_sends_a_control_row_to_each_shard() -> None:
    """A row of nulls is sent like any other."""
    nothing = packed([])
    assert [row["rows"] for row in nothing] == [wire.CONTROL] * SHARDS
    assert {row["body"] for row in nothing} == {None}
    assert wire.read_observed(nothing[0]["head"]) == ({}, 0)
    nulls = rows(9).take(pa.array([2, 2, 5]))
    counts = [row["rows"] for row in packed([nulls]) if row["rows"] != wire.CONTROL]
    assert sum(counts) == 3


def test_records_without_an_id_are_sharded_by_content_in_any_order() -> None:
    """A recomputed task may read its input in another order; a shard must not lose a row."""
    batch = rows(300)
    no_id = pa.nulls(batch.num_rows, pa.string())
    nulls = batch.set_column(0, batch.schema.field("id"), no_id)

    def by_shard(given: pa.RecordBatch) -> dict[int, list[str]]:
        user = pa.schema(list(batch.schema)[:10])
        found: dict[int, list[str]] = {}
        for row in packed([given]):
            if row["rows"] != wire.CONTROL:
                texts = map(repr, unpacked(row, user).to_pylist())
                found.setdefault(row["shard"], []).extend(texts)
        return {shard: sorted(texts) for shard, texts in found.items()}

    turned = nulls.take(pa.array(range(nulls.num_rows - 1, -1, -1)))
    assert by_shard(nulls) == by_shard(turned)
    assert len(by_shard(nulls)) == SHARDS


@pytest.mark.parametrize("policy", ["emit", "drop", "now", "error"])
def test_a_record_with_an_id_needs_a_timestamp_unless_the_option_allows_null(policy: str) -> None:
    """A record with neither ID nor timestamp gets no time, under any option."""
    ids = ["a", "b", None, None]
    batch = rows(12).slice(0, 4).set_column(0, "id", pa.array(ids))
    times = batch["ts"].take(pa.array([0, 2, 1, 2]))
    batch = batch.set_column(1, batch.schema.field("ts"), times)
    batch = batch.append_column("source", pa.array(["p", "q", "p", None]))
    made = plan(
        handling=Handling(null_timestamps=policy), source_columns=("source",), policy=SOURCED,
        user_columns=1, body_columns=1,
    )  # fmt: skip
    if policy == "error":
        with pytest.raises(DataError, match=r"1 records have no timestamp .*: id='b'"):
            packed([batch], made)
        batch = batch.take(pa.array([0, 2, 3]))
    sent = packed([batch], made)
    neither = FLAG_NULL_ID | FLAG_NULL_TIME | FLAG_UNTIMED
    timeless = FLAG_NULL_TIME | (FLAG_UNTIMED if policy != "now" else 0)
    expected = [0, timeless, FLAG_NULL_ID, neither]
    if policy == "error":
        expected.remove(timeless)
    assert heads(sent, "flags", with_sources=True) == sorted(expected)
    observed, _ = wire.read_observed(sent[-1]["head"])
    assert observed['"p"'][0].records == 2
    assert observed.keys() - {'"p"'} == ({'"q"'} if policy == "now" else set())
    made = replace(made, source_columns=(), policy=EVENT)
    nothing = batch.filter(pc.is_null(batch["ts"]))
    observed, _ = wire.read_observed(packed([nothing], made)[-1]["head"])
    assert observed == ({"": (Observed(NEVER_MS, 1), 0)} if policy == "now" else {})


def test_a_null_id_lacks_no_timestamp_if_the_time_is_in_the_id() -> None:
    """This holds under `emit` and `now`. An ID that is no UUID does lack a timestamp."""
    time = replace(TIME, column=None, in_id=time_from_id("uuid7"))
    for policy in ("emit", "now"):
        batch = rows(3).set_column(0, "id", pa.array(["no UUID", None, None]))
        sent = packed([batch], plan(handling=Handling(null_timestamps=policy), time=time))
        broken = FLAG_NULL_TIME | (FLAG_UNTIMED if policy == "emit" else 0)
        assert heads(sent, "flags") == sorted([broken, *[FLAG_NULL_ID | FLAG_UNTIMED] * 2])
        observed, _ = wire.read_observed(sent[-1]["head"])
        assert observed.keys() == (set() if policy == "emit" else {""})


def refusal(batch: pa.RecordBatch, **changes: Any) -> str:
    handling = Handling(null_ids="error")
    made = plan(handling=handling, user_columns=batch.num_columns - 1, **changes)
    with pytest.raises(DataError) as caught:
        Packer(made, layout()).add(batch)
    assert caught.value.remedy == "bad-records"
    return caught.value.text


def test_an_error_shows_where_the_first_bad_record_is() -> None:
    when = pa.timestamp("us", "GMT+8")
    columns: dict[str, Any] = {
        "id": ["good", "bad", "bad too"], "ts": pa.array([0, None, None], when),
        "note": ["n", "x" * 200 + ".json", None], "fields": [{"a": 1}] * 3,
        "born": pa.array([253_402_300_800_000_000] * 3, when), "site": ["berlin"] * 3,
        "topic": ["clicks"] * 3, "partition": [3] * 3, "offset": [17, 18, 19],
        "more": ["m" * 100] * 3, "last": ["never shown"] * 3, "now": pa.array([0] * 3, when),
    }  # fmt: skip
    batch = pa.RecordBatch.from_pydict(columns)
    text = refusal(batch, source_columns=("site",), policy=SOURCED)
    assert text.startswith(
        '2 records have no timestamp (column ts timestamp) and null_timestamps="error" is set. '
        "The first of them: id='bad', source='berlin', topic='clicks', partition=3, offset=18, "
        "note='xxx"
    )
    assert "xxx.json', born='10000-01-01 00:00:00+00:00', and more. Fix" in text
    for shown in ('null_timestamps="now"', '"emit"', '"drop"'):
        assert shown in text
    no_id = batch.set_column(0, "id", pa.array(["good", None, "c"]))
    assert refusal(no_id).startswith(
        '1 records have a null ID (id) and null_ids="error" is set. The first of them: '
        "topic='clicks', partition=3, offset=18, note='xxx"
    )
    nothing = pa.RecordBatch.from_arrays(
        [*(pa.nulls(3, field.type) for field in list(batch.schema)[:-1]), batch["now"]],
        schema=batch.schema,
    )
    assert "is null in every column" in refusal(nothing)
    assert "_metadata.file_path" in refusal(nothing)


def test_clocks_are_sent_per_source_partition() -> None:
    made = plan(source_columns=("flag", "small"))
    # A source partition with neither ID nor time does not count as heard.
    batch = rows(12).set_column(0, "id", pa.array(map(str, range(12))))
    (observed, *others) = (
        wire.read_observed(row["head"])[0]
        for row in packed([batch], made)
        if row["rows"] == wire.CONTROL
    )
    assert all(other == observed for other in others)
    base_ms = int(BASE.timestamp()) * 1000
    assert observed["[true,0]"][0].newest_ms == base_ms
    assert observed["[false,7]"][0].newest_ms == base_ms + 7_000
    # Null timestamps count as now, which moves no clock.
    assert observed["[null,null]"][0].records == 4
    assert observed["[null,null]"][0].newest_ms < 0
    assert len({number for _, number in observed.values()}) == len(observed)
    one, _ = wire.read_observed(packed([batch])[-1]["head"])
    assert one[""][0].newest_ms == base_ms + 10_000
    assert one[""][0].records == 12
    untimed = replace(plan(), policy=Policy(horizon_ms=1, bucket_ms=1))
    assert wire.read_observed(packed([batch], untimed)[-1]["head"]) == ({}, 0)


def test_heartbeats_only_advance_clocks() -> None:
    """Rows 0, 4, 6 and 10 of 12 are heartbeats. A null is none."""
    batch = rows(12)
    sent = packed([batch], plan(heartbeat_column="flag"))
    assert sum(row["rows"] for row in sent if row["rows"] != wire.CONTROL) == 8
    told = [wire.read_observed(row["head"]) for row in sent if row["rows"] == wire.CONTROL]
    assert [beats for _, beats in told] == [4, 0, 0], "the metrics add the shards up"
    base_ms = int(BASE.timestamp()) * 1000
    seen = Observed(base_ms + 9_000, 8, base_ms + 10_000)
    assert [observed for observed, _ in told] == [{"": (seen, 0)}] * SHARDS

    beats = batch.take(pa.array([0, 0, 4, 6]))
    times = pa.array([None, BASE, BASE + timedelta(days=9), BASE], batch.schema.field("ts").type)
    beats = beats.set_column(0, "id", pa.nulls(4, pa.string())).set_column(1, "ts", times)
    beats = beats.append_column("source", pa.array(["none", "p", "future", "p"]))
    made = plan(
        heartbeat_column="flag", source_columns=("source",), policy=SOURCED,
        handling=Handling(null_ids="error", null_timestamps="error"),
    )  # fmt: skip
    sent = packed([beats], made)
    assert {row["rows"] for row in sent} == {wire.CONTROL}
    observed, count = wire.read_observed(sent[0]["head"])
    assert count == 4
    assert {name: seen for name, (seen, _) in observed.items()} == {
        '"p"': Observed(NEVER_MS, 2, base_ms), '"future"': Observed(NEVER_MS, 1),
    }  # fmt: skip


def test_times_are_floored_to_milliseconds() -> None:
    micros = [-1, -1000, -1001, 999, 1000, -62_135_596_800_000_000, 253_402_300_799_999_999]
    for zone in ("UTC", "Asia/Kolkata", None):
        batch = pa.RecordBatch.from_pydict(
            {
                "id": pa.array(map(str, range(7))),
                "ts": pa.array(micros, pa.timestamp("us", zone)),
                "now": pa.array([2**62] * 7, pa.timestamp("us", "UTC")),
            }
        )
        made = plan(user_columns=2, body_columns=2)
        assert heads(packed([batch], made), "time_ms") == sorted(
            [-1, -1, -2, 0, 1, -62_135_596_800_000, 253_402_300_799_999]
        )


def test_metrics_of_pack_are_sent_in_columns_outside_the_shuffle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each map task sends one row of them."""
    monkeypatch.setattr(pack, "layout", lambda *_: layout())
    monkeypatch.setattr(pack, "Task", SimpleNamespace(current=lambda _: None))
    batch = rows(600)
    sent = list(pack.pack(plan(), iter([batch.slice(0, 300), batch.slice(300)]), lambda: 7))
    assert all(piece.schema == wire.SENT_ARROW for piece in sent)
    told = {}
    for name in wire.PACK_FIGURES:
        figures = [figure for piece in sent for figure in piece.column(name).to_pylist()]
        told[name] = max(filter(None, figures))
        given = [figure is not None for figure in figures]
        assert given == [False] * (len(figures) - SHARDS) + [True] + [False] * (SHARDS - 1)
    assert told["bytes_in"] == batch.slice(0, 300).nbytes + batch.slice(300).nbytes
    assert told["bad_records"] == 7
    kept = [piece.drop_columns(list(wire.PACK_FIGURES)) for piece in sent]
    shuffled = [row for piece in kept for row in piece.to_pylist()]
    assert shuffled == packed([batch])


def test_a_stream_is_refused_if_pyspark_and_pyarrow_do_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.3")
    monkeypatch.setattr("pyarrow.__version__", "26.0.1")
    with pytest.raises(ExecutorError, match=r"4\.1\.3 does not work with pyarrow 26\.0\.1"):
        next(pack.pack(plan(streaming=True), iter(())))


def test_a_share_too_large_for_a_worker_is_refused_with_the_options_to_change() -> None:
    sent = pd.DataFrame(packed([rows(200)]))
    ShardInput(plan(), layout()).add(sent)
    told = "exceeds 1,000 bytes.*maxOffsetsPerTrigger.*more `shards`.*`max_shard_batch_bytes`"
    with pytest.raises(ConfigError, match=told):
        ShardInput(plan(max_shard_batch_bytes=1000), layout()).add(sent)


def test_run_ids_differ_between_starts_and_job_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink may give all starts one job group, but each start makes its own checks."""
    properties = {
        "sql.streaming.queryId": "q",
        "streaming.sql.batchId": "7",
        "spark.sql.streaming.internal.stateStore.partitions": "2",
    }
    context = SimpleNamespace(
        getLocalProperty=properties.get,
        taskAttemptId=lambda: 5,
        partitionId=lambda: 1,
        attemptNumber=lambda: 0,
    )
    monkeypatch.setattr("dedup.spark.executor.task.TaskContext.get", lambda: context)
    runs = []
    for start in range(2):
        for group in ("orders", "other"):
            properties["spark.jobGroup.id"] = group
            made = plan(streaming=True, start_id=str(UUID(int=start)))
            task = Task.current(made)
            assert (task.query_id, task.epoch, task.partitions) == ("q", 7, 2)
            assert task.run_id == Task.current(made).run_id
            runs.append(task.run_id)
    assert len(set(runs)) == 4
