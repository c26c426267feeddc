"""Numbered records on real streams: verdicts over restarts, replays, kills, and what is refused."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import dedup.spark
from dedup import DedupListener, check_query, dedup_by_id, dedup_by_sequence, split, time_from_id
from dedup.core.sequence_metrics import SequenceMetrics
from dedup.errors import ConfigError, DataError, DedupError, cause
from dedup.tools.watch.query_log import read_logs
from tests.support.sequence_model import SEQUENCES, SequenceModel
from tests.support.sequence_query import SEQUENCE_SCHEMA, SequenceQuery, numbered, run_of, told
from tests.support.spark_query import collected, forget_commits, listening, roll_back
from tests.support.state_stores import CHANGELOG, CHANGELOG_V2, configure
from tests.support.waiting import wait_until

MARKED = {"verdict": "verdict"}


def query(spark: SparkSession, folder: Path, **options: Any) -> SequenceQuery:
    return SequenceQuery(spark, folder, options, schema=SEQUENCE_SCHEMA)


def error_of(made: SequenceQuery) -> DedupError | None:
    with pytest.raises(StreamingQueryException) as stopped:
        made.run()
    return cause(stopped.value)


def test_records_of_producers_and_their_zombies_are_judged_by_epoch_and_number(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Over a restart in the midst of it, past the last number, with other handling behind it.

    Behind the last number one record counts on, and the next has begun again.
    """
    made = query(spark, tmp_path, **MARKED)
    end = SEQUENCES - 1
    made.add(*run_of("a", 0, 0, 2), *run_of("b", 0, end - 1, end), "-/0:1", "a/0:-", "a/0:-1")
    made.add(*run_of("a", 0, 1, 3), "a/0:6", f"b/0:{SEQUENCES}", "b/1:0", "b/0:1", "c/2:5")
    assert made.judged() == [
        ["None/0:1 unnumbered", "a/0:-1 unnumbered", "a/0:0 accept", "a/0:1 accept",
         "a/0:2 accept", "a/0:None unnumbered", f"b/0:{end - 1} unknown", f"b/0:{end} accept"],
        ["a/0:1 duplicate", "a/0:2 duplicate", "a/0:3 accept", "a/0:6 gap",
         "b/0:1 accept", f"b/0:{SEQUENCES} accept", "b/1:0 accept", "c/2:5 unknown"],
    ]  # fmt: skip
    made.add("a/0:5", "a/0:6", "b/0:2", "b/2:1", "c/2:3", "c/2:5")
    assert made.judged() == [
        ["a/0:5 gap", "a/0:6 duplicate", "b/0:2 fenced", "b/2:1 gap", "c/2:3 unknown",
         "c/2:5 duplicate"]
    ]  # fmt: skip
    made.options = {"gaps": "drop", "unknown": "drop", "fenced": "emit", "unnumbered": "drop"}
    made.add("a/0:7", "a/0:9", "b/1:7", "b/2:2", "c/2:2", "d/0:3", "-/0:1")
    assert made.judged() == [["a/0:7", "b/1:7", "b/2:2"]]
    made.add("a/0:8", "a/0:9", "a/0:7")
    assert made.judged() == [["a/0:8", "a/0:9"]]


def seeded(folder: Path, spark: SparkSession, **options: Any) -> tuple[SequenceQuery, list[Any]]:
    """Micro-batches of four files each, of producers that repeat, leave out and begin again."""
    rng = Random(7)
    made = query(spark, folder, **MARKED, **options)
    made.files_per_batch = 4
    following = dict.fromkeys("abcdefgh", (0, 0))
    batches = []
    for _ in range(4):
        records = []
        for producer, (epoch, first) in following.items():
            if rng.random() < 0.15:
                epoch, first = epoch + 1, rng.choice([0, 0, 2])
            sent = list(range(max(0, first - 20), first + 120))
            left_out = rng.sample(sent, 9)
            records += [(producer, epoch, s) for s in sent if s not in left_out]
            records += [(producer, epoch - 1, 500)] if epoch else []
            following[producer] = epoch, first + 120
        rng.shuffle(records)
        for part in range(4):
            made.add(*(f"{p}/{e}:{s}" for p, e, s in records[part::4]))
        batches.append(records)
    return made, batches


def expected(batches: list[Any]) -> list[list[str]]:
    model = SequenceModel()
    return [
        sorted(
            f"{producer}/{epoch}:{sequence} {verdict}"
            for (producer, epoch, sequence, verdict), n in model.batch(records).items()
            for _ in range(n)
        )
        for records in batches
    ]


@pytest.fixture(scope="module")
def done(
    shared_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SequenceQuery, list[Any]]:
    """Micro-batches at their end; tests continue from copies."""
    made, batches = seeded(tmp_path_factory.mktemp("done"), shared_spark.newSession())
    assert made.judged() == expected(batches)
    return made, batches


@pytest.mark.slow
def test_a_replay_in_other_tasks_and_another_order_gives_the_same_verdicts(
    done: tuple[SequenceQuery, list[Any]], tmp_path: Path
) -> None:
    finished, batches = done
    again = finished.copy(tmp_path)
    roll_back(again.checkpoint, 1)
    again.before = lambda df: df.repartition(5, "n")
    rows = again.run().rows
    assert sorted(rows) == [1, 2, 3]
    assert told(rows) == expected(batches)[1:]
    # Of two copies the same row is the original, in any order of arrival.
    third = finished.copy(tmp_path / "third")
    roll_back(third.checkpoint, 1)
    third.before = lambda df: df.repartition(2, F.col("n") % 7)
    assert [sorted(map(repr, batch)) for batch in third.run().rows.values()] == [
        sorted(map(repr, batch)) for batch in rows.values()
    ]


@pytest.mark.parametrize(
    "store",
    [
        pytest.param(CHANGELOG, id="changelog", marks=pytest.mark.slow),
        pytest.param(CHANGELOG_V2, id="checkpoint v2"),
    ],
)
@pytest.mark.slow
def test_a_copy_continues_beside_its_original_on_other_state_stores(
    spark: SparkSession, tmp_path: Path, store: dict[str, str]
) -> None:
    """Each continues from its own state, and Spark has lost the last commit of one."""
    configure(spark, store)
    made = query(spark, tmp_path, **MARKED)
    made.add(*run_of("a", 0, 0, 3), "b/0:0").add("a/0:6", "b/1:0")
    first = made.judged()
    clone = made.copy(tmp_path / "clone")
    forget_commits(clone.checkpoint, 1)
    made.add("a/0:5", "b/0:1")
    on = made.judged()
    assert on == [["a/0:5 gap", "b/0:1 fenced"]]
    made.add("a/0:5", "a/0:7")
    assert made.judged() == [["a/0:5 duplicate", "a/0:7 accept"]]
    # The copy reads the same input, and knows nothing of its original.
    assert clone.judged() == [first[1], *on, ["a/0:5 duplicate", "a/0:7 accept"]]


def test_metrics_of_sequences_reach_the_listener_and_its_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = query(spark, tmp_path, metrics="dedup")
    heard: list[SequenceMetrics] = []
    made.add(*run_of("a", 0, 0, 9), "b/0:3", "a/0:3", "-/0:1", "a/0:15")
    made.add("a/0:11", "a/0:11", "b/1:0", "b/0:4")
    made.add("b/0:5")
    # The listener's default name for dedup_by_id.
    listener = DedupListener(
        on_sequences=heard.append, sequence_metrics="dedup", log=tmp_path / "log"
    )
    with listening(spark, listener):
        measured = made.measured()
        assert wait_until(lambda: len(heard) == 3)
    assert heard == measured
    first, second, third = measured
    assert (first.records_in, first.accept, first.duplicate, first.gap) == (14, 10, 1, 1)
    assert (first.unknown, first.unnumbered, first.emitted, first.missing) == (1, 1, 13, 5)
    assert (first.begins, first.shards, first.producers, first.producers_new) == (True, 2, 2, 2)
    assert (second.gap, second.duplicate, second.recovered, second.missing) == (1, 1, 1, 0)
    assert (second.accept, second.fenced, second.epochs_apart) == (2, 0, 0)
    assert (third.fenced, third.emitted, third.producers_new) == (1, 0, 0)
    for one in measured:
        verdicts = ("accept", "duplicate", "gap", "fenced", "unknown", "unnumbered", "untimed")
        assert one.records_in == sum(getattr(one, name) for name in verdicts)
        assert one.state_bytes > 100
        assert min(one.stage_us.values()) > 0
    (watched,) = listener.watched()
    (log,) = read_logs(tmp_path / "log")
    assert watched.of_sequences == [one for _, one in log.batches] == heard


def test_a_batch_has_the_same_answer_as_one_micro_batch(spark: SparkSession) -> None:
    rows = [
        ("a", "x", 0),
        ("a", "y", 0),
        ("a", "x", 1),
        ("a", "x", 1),
        ("a", "x", 4),
        ("b", "x", 9),
    ]
    frame = spark.createDataFrame(rows, "device string, line string, n int").repartition(3)
    operator = dedup_by_sequence(
        "device",
        F.col("n") % SEQUENCES,
        partition="line",
        expire_after="1 day",
        verdict="v",
        max_producers=1,  # of a stream alone
    )
    found = sorted(tuple(row) for row in frame.transform(operator).collect())
    assert found == [
        ("a", "x", 0, "accept"), ("a", "x", 1, "accept"), ("a", "x", 1, "duplicate"),
        ("a", "x", 4, "gap"), ("a", "y", 0, "accept"), ("b", "x", 9, "unknown"),
    ]  # fmt: skip
    # One text column as the producer: it travels as the keys alone, null included.
    plain = dedup_by_sequence("device", "n", expire_after="1 day")
    more = frame.unionByName(spark.createDataFrame([(None, "z", 1)], frame.schema))
    kept = more.transform(plain).collect()
    assert sorted((row.device or "-", row.n) for row in kept) == [
        ("-", 1), ("a", 0), ("a", 1), ("a", 4), ("b", 9),
    ]  # fmt: skip


def test_each_verdict_goes_to_its_own_sink(spark: SparkSession, tmp_path: Path) -> None:
    made = query(spark, tmp_path, **MARKED)
    made.add("a/0:0", "a/0:0", "a/0:2", "b/1:0", "c/0:5", "-/0:0").add("b/0:3")
    taken: dict[str, list[str]] = {}

    def into(name: str) -> Any:
        def take(rows: DataFrame, batch: int) -> None:
            shown = [f"{r.producer}/{r.epoch}:{r.sequence}" for r in rows.collect()]
            taken.setdefault(name, []).extend(sorted(shown))

        return take

    writer = split(
        made.result(), unique=into("on"), duplicate=into("again"), gap=into("gap"),
        fenced=into("fenced"),
    )  # fmt: skip
    started = writer.trigger(availableNow=True).option("checkpointLocation", str(made.checkpoint))
    assert started.start().awaitTermination(240)
    assert taken == {
        "on": ["None/0:0", "a/0:0", "b/1:0", "c/0:5"], "again": ["a/0:0"], "gap": ["a/0:2"],
        "fenced": ["b/0:3"],
    }  # fmt: skip
    with pytest.raises(ConfigError, match="late=: the operator of this stream has no such verdict"):
        split(made.result(), unique=into("on"), late=into("late"))


@pytest.mark.parametrize(
    ("options", "record", "message"),
    [
        ({"gaps": "error"}, "a/0:5", r'1 records are out of order.*gaps="error".*producer=\'a\'.*'
         r"It is sequence 5 of epoch 0"),
        ({"unknown": "error"}, "z/0:7", r"unknown producers.*producer='z'"),
        ({"unnumbered": "error"}, "z/0:-", r'no producer, epoch or sequence.*unnumbered="error"'),
    ],
)  # fmt: skip
def test_a_record_under_policy_error_is_reported(
    spark: SparkSession, options: dict[str, Any], record: str, message: str
) -> None:
    frame = spark.createDataFrame(numbered(["a/0:0", record]).to_pylist(), SEQUENCE_SCHEMA)
    operator = dedup_by_sequence(
        "producer", "sequence", epoch="epoch", expire_after="1 h", **options
    )
    with pytest.raises(PythonException) as stopped:
        frame.transform(operator).collect()
    error = cause(stopped.value)
    assert isinstance(error, DataError)
    assert re.search(message, str(error), re.S)


@pytest.mark.parametrize(
    ("operator", "way_out"),
    [
        (dedup_by_sequence("producer", "sequence", expire_after="1 h", max_shard_batch_bytes=9),
         ""),
        (dedup_by_id("producer", horizon="1 h", max_shard_batch_bytes=9), "use more `shards`, "),
    ],
    ids=["sequence", "id"],
)  # fmt: skip
def test_a_share_that_is_too_large_is_rejected_with_the_remedy(
    spark: SparkSession, operator: Any, way_out: str
) -> None:
    """The records of one producer cannot be spread over more shards."""
    frame = spark.createDataFrame(numbered(["a/0:0"]).to_pylist(), SEQUENCE_SCHEMA)
    with pytest.raises(PythonException) as stopped:
        frame.transform(operator).collect()
    error = cause(stopped.value)
    assert isinstance(error, ConfigError)
    told = str(error)
    assert "share of this micro-batch exceeds 9 bytes" in told
    assert f"maxBytesPerTrigger), {way_out}or raise `max_shard_batch_bytes`" in told


def test_a_micro_batch_that_stops_the_query_changes_no_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = query(spark, tmp_path, **MARKED, fenced="error")
    made.add("a/0:0", "b/1:0").add("a/0:1", "b/0:7")
    error = error_of(made)
    assert isinstance(error, DataError)
    assert re.search("an epoch that a newer one.*It is sequence 7 of epoch 0", str(error), re.S)
    made.options["fenced"] = "drop"
    assert made.judged() == [["a/0:1 accept", "b/0:7 fenced"]]


@pytest.mark.slow
def test_a_restart_may_change_options_but_not_the_epoch_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = query(spark, tmp_path, **MARKED)
    made.add("a/0:0", "b/0:0")
    made.judged()
    made.add("a/0:0", "c/0:0", "d/0:0", "e/0:0")
    made.options = MARKED | {"epoch": F.col("epoch").cast("bigint")}
    error = error_of(made)
    assert isinstance(error, ConfigError)
    assert re.search(r"begun with epoch=epoch, and is started with epoch=cast\(epoch", str(error))
    made.options = MARKED | {"max_producers": 1}
    assert "max_producers is 1" in str(error_of(made))
    made.options = MARKED | {"max_producers": 10, "expire_after": "2 hours", "gaps": "drop"}
    made.before = lambda df: df.withColumn("more", F.lit(1)).withColumn(
        "sequence", F.col("sequence").cast("int")
    )
    made.spark.conf.set("spark.sql.shuffle.partitions", 3)
    assert made.judged() == [["a/0:0 duplicate", "c/0:0 accept", "d/0:0 accept", "e/0:0 accept"]]


def test_the_state_of_another_partition_is_reported(
    done: tuple[SequenceQuery, list[Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is found only afterwards: Spark asks this state for the shard, and it has none."""
    made, _ = done
    again = made.copy(tmp_path)
    roll_back(again.checkpoint, 3)
    one, other = (again.checkpoint / "state" / "0" / partition for partition in "01")
    # With its checksums, which some releases of Spark look at.
    taken = [path for path in other.iterdir() if "3.delta" in path.name]
    assert taken
    for path in taken:
        shutil.copy(path, one / path.name)
    heard: list[SequenceMetrics] = []
    with listening(again.spark, DedupListener(on_sequences=heard.append)):
        again.run()
        assert wait_until(lambda: heard)
    assert heard[0].epochs_apart > 0
    assert "micro-batches older than the others" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence": "sequnce"}, "sequence='sequnce': there is no such column. Did you mean 'seq"),
        ({"sequence": "producer"}, "sequence column 'producer' is string; an integer is needed"),
        ({"sequence": lambda: F.lit(1)}, "reads no column of the record"),
        ({"sequence": lambda: F.unix_timestamp()}, "sequence='unix_timestamp.*another value"),
        ({"epoch": "ts"}, "epoch column 'ts' is timestamp; an integer is needed"),
        ({"producer": []}, r"producer=\[\] names no column"),
        ({"producer": F.monotonically_increasing_id}, "producer='monotonically"),
        ({"producer": lambda: F.array("n")}, "producer column .* is array<bigint>: it is nested"),
        ({"gaps": "wait"}, "gaps='wait' must be one of emit, drop, error"),
        ({"expire_after": "0 s"}, "expire_after='0 s' must be at least a millisecond"),
        ({"max_producers": 0}, "max_producers=0 must be a whole number from 1"),
        ({"ranges": 256}, "ranges=256 must be a whole number from 1 to 255"),
        ({"source_partition": "n"}, "source_partition='n' needs a timestamp"),
        ({"heartbeat": "n"}, "heartbeat='n' needs a timestamp"),
        ({"timestamp": time_from_id("uuid7")}, "records of dedup_by_sequence have none"),
        ({"verdict": "N"}, "verdict='N' is already a column"),
    ],
)
def test_options_that_cannot_work_are_rejected_on_the_driver(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    made = query(spark, tmp_path)
    made.options = {name: value() if callable(value) else value for name, value in options.items()}
    with pytest.raises(ConfigError, match=re.compile(message, re.S)):
        made.result()


def test_a_second_operator_or_an_earlier_watermark_is_rejected(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = query(spark, tmp_path)
    by_id = dedup_by_id("n", horizon="1 day", catalog=str(tmp_path / "catalog"))
    with pytest.raises(ConfigError, match="This query already has a dedup_by_id or another"):
        made.result().transform(by_id)
    made.before = lambda df: df.withWatermark("ts", "1 minute")
    with pytest.raises(ConfigError, match="stands before dedup_by_sequence"):
        made.result()
    made.before = lambda df: df
    operator = dedup_by_sequence("producer", "n", expire_after="1 day", max_producers=7)
    found = {one.rule: one for one in check_query(made.source(), operator, checkpoint=tmp_path)}
    assert "1 day" in found["expire-after"].evidence
    assert found["checkpoint"].level == "cannot be told"
    assert found["safety-settings"].level == "fine"
    with pytest.raises(ConfigError, match=r"is not an operator\. Give the result of"):
        check_query(made.source(), lambda df: df)  # type: ignore[arg-type]


def test_a_heartbeat_lets_silent_producers_expire(spark: SparkSession, tmp_path: Path) -> None:
    options = {"timestamp": "ts", "heartbeat": F.col("producer") == "beat"}
    query = SequenceQuery(spark, tmp_path, options, schema=SEQUENCE_SCHEMA)
    query.add("a/0:0@0").add("beat/:-@9000").add("b/0:0@9000")
    metrics = query.measured()
    assert [m.heartbeats for m in metrics] == [m.producers_expired for m in metrics] == [0, 1, 0]
    assert [m.records_in for m in metrics] == [m.accept for m in metrics] == [1, 0, 1]


def test_the_first_micro_batch_may_have_no_records(spark: SparkSession, tmp_path: Path) -> None:
    made = query(spark, tmp_path)
    (made.input / "00000.parquet").touch()
    made._stamp(made.input / "00000.parquet")
    made.run()
    made.add("a/0:0", "a/0:1")
    assert len(made.run().rows[1]) == 2
    made.add("a/0:1", "a/0:2")
    assert [row["sequence"] for row in made.run().rows[2]] == [2]


def test_the_examples_of_the_page_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(dedup.spark.__file__).with_name("SEQUENCES.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 2
    for _ in range(2):
        spark.range(30).withColumnRenamed("id", "value").write.mode("append").parquet(
            str(tmp_path / "input")
        )
    ticks = spark.readStream.schema("value bigint").parquet(str(tmp_path / "input"))
    names: dict[str, Any] = {"spark": spark, "ticks": ticks}
    for snippet in snippets:
        exec(snippet.replace('"metrics"', repr(str(tmp_path / "metrics"))), names)
    seen = collected(names["once"], tmp_path / "checkpoint")
    assert Counter(row.verdict for row in seen) == {"accept": 30, "duplicate": 30}
    assert wait_until(lambda: "0 30 0" in capsys.readouterr().out)
    assert list((tmp_path / "metrics").iterdir())
