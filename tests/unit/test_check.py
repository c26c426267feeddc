"""`dedup check` on checkpoints as Spark writes them: what it reads, says, and refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from dedup.catalog.compatibility import create_or_check
from dedup.cli import check as check_work
from dedup.cli.check import of_run
from dedup.cli.commands import App
from dedup.cli.findings import findings_lines, summary_line
from dedup.cli.flags import CheckFlags
from dedup.cli.run.options import RunOptions
from dedup.cli.run.record import Record
from dedup.core.sharding import slot_keys
from dedup.errors import DedupError
from dedup.sinks.kafka.options import kafka_options
from dedup.spark.driver.checkpoint_log import OTHER, SINKS, read_checkpoint
from dedup.storage.root import Root
from dedup.tools.check.facts import FOREVER_MS, Facts, retention
from dedup.tools.check.findings import Finding, Level, Takes
from dedup.tools.watch.metrics_log import MetricsLog
from tests.support.batch_metrics import HOUR_MS, QUERY, batch, sequence_batch
from tests.support.catalog import certificate

app = App()
app.add(CheckFlags)

STATE = "org.apache.spark.sql.execution.streaming.state."
CONF = {
    "spark.sql.streaming.stateStore.providerClass": STATE + "HDFSBackedStateStoreProvider",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
}
LOCAL = ("--conf", "spark.master=local[4]")


def kafka(*ends: int) -> str:
    return json.dumps({"orders": {str(n): end for n, end in enumerate(ends)}})


def make_checkpoint(
    folder: Path,
    *offsets: str,
    conf: dict[str, str] = CONF,
    operator: str = "applyInPandasWithState",
    first: int = 0,
) -> Path:
    """A checkpoint in which each micro-batch has one line of source offsets, as of Spark 4.3."""
    for name in ("offsets", "commits", "state/0/_metadata"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    about = {"batchWatermarkMs": 0, "batchTimestampMs": 1_795_279_533_413, "conf": conf}
    for number, line in enumerate(offsets, first):
        (folder / f"offsets/{number}").write_text(f"v1\n{json.dumps(about)}\n{line}")
        (folder / f"offsets/.{number}.crc").write_bytes(b"crc")
        (folder / f"commits/{number}").write_text('v1\n{"nextBatchWatermarkMs":0}')
    stored = {
        "operatorInfo": {"operatorId": 0, "operatorName": operator},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
    }
    (folder / "state/0/_metadata/metadata").write_text(f"v1\n{json.dumps(stored)}")
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkpoint of one micro-batch from Kafka."""
    return make_checkpoint(tmp_path / "c", kafka(1, 1))


def make_catalog(folder: Path, *, shards: int = 4, timestamp: str = "column ts timestamp") -> Path:
    made = certificate(shards=shards, slot_keys=slot_keys(shards, 4), timestamp_source=timestamp)
    create_or_check(Root(folder), made)
    return folder


def make_log(folder: Path, **fields: Any) -> Path:
    log = MetricsLog(folder)
    for number in range(3):
        made = {"slowest_sources": (("", 1, False),), "late": 20, **fields}
        log.batch(batch(number, **made), 1000 * number)
    return folder


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def findings(*arguments: object) -> dict[str, list[dict[str, Any]]]:
    """What ``--json`` tells, by rule."""
    body = json.loads(run(*arguments, "--json").stdout)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in body["findings"]:
        found.setdefault(finding["rule"], []).append(finding)
    return found


def refused(code: int, *arguments: object) -> str:
    """The one line of an error."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    first, *rest = result.stderr.strip().split("\n")
    assert first.startswith("error: ")
    assert all(line.startswith("Remedies: ") for line in rest)
    assert result.stdout == ""
    return first


# --- the checkpoint's logs


@pytest.mark.parametrize(
    ("offsets", "kinds", "partitions"),
    [
        ([kafka(0, 0), kafka(100, 50), kafka(130, 100, 9)], ["kafka"], [3]),
        (['{"logOffset":0}', '{"logOffset":1}'], ["file"], [None]),
        (["17"], [OTHER], [None]),
        (['{"offset":10500,"timestamp":1}'], [OTHER], [None]),
        (['{"a":{"x":1}}'], [OTHER], [None]),
        # A source that lately had nothing to report.
        ([f"{kafka(1)}\n-", '-\n{"logOffset":3}'], ["kafka", "file"], [1, None]),
    ],
)
def test_the_offset_log_shows_kinds_and_partitions_of_sources(
    tmp_path: Path, offsets: list[str], kinds: list[str], partitions: list[int | None]
) -> None:
    place = make_checkpoint(tmp_path / "c", *offsets)
    log = read_checkpoint(str(place))
    assert [source.kind for source in log.sources or ()] == kinds
    assert [source.partitions for source in log.sources or ()] == partitions
    assert (log.query_id, log.batch_id) == (QUERY, len(offsets) - 1)
    assert (log.state_partitions, log.pinned) == (4, CONF)
    assert read_checkpoint(f"file://{place}") == log


def test_the_newest_offsets_are_found_by_number_not_by_text(tmp_path: Path) -> None:
    place = make_checkpoint(tmp_path / "c", kafka(0), kafka(5), kafka(15), first=8)
    log = read_checkpoint(str(place))
    assert log.batch_id == 10
    assert [source.topics for source in log.sources or ()] == [("orders",)]


def test_an_offset_log_that_names_its_sources_is_read(place: Path) -> None:
    about = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": CONF})
    (place / "offsets/1").write_text(f"v2\n{about}\n0:{kafka(9)}\nclicks:{kafka(3, 4)}")
    assert [s.partitions for s in read_checkpoint(str(place)).sources or ()] == [1, 2]


# --- what the command makes of it


def test_check_finds_nothing_wrong_if_everything_is_known(tmp_path: Path) -> None:
    place = make_checkpoint(tmp_path / "c", kafka(0, 0, 0, 0), kafka(1000, 1000, 1000, 1000))
    properties = tmp_path / "spark-defaults.conf"
    properties.write_text(
        "# ours\nspark.master   local[4]\nspark.driver.memory: 1g\n\n"
        "spark.sql.shuffle.partitions=4\n"
    )
    result = run(
        place, "--catalog", make_catalog(tmp_path / "catalog"),
        "--log", make_log(tmp_path / "log", slowest_sources=(('["orders",0]', 1, False),), late=5),
        "--properties", properties, "--kafka-retention", "1 hour",
        "--source-option", "failOnDataLoss=true",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert f"query {QUERY} (orders), as of micro-batch 1" in result.stdout
    last = result.stdout.strip().split("\n")[-1]
    assert "fine" in last
    assert not {"breaks", "costs", "told"} & set(last.split())


def test_check_recognises_a_sink_by_its_staging_folder(tmp_path: Path) -> None:
    place = make_checkpoint(tmp_path / "c", kafka(0, 0), kafka(10, 10))
    assert not findings(place).keys() & {"sink-readers", "sink-markers"}
    (place / SINKS / "audit").mkdir(parents=True)
    found = findings(place, "--sink-option", "Topic=out")
    assert "sink audit" in found["sink-readers"][0]["evidence"]
    assert "Topic out-markers" in found["sink-markers"][0]["evidence"]


def test_the_kafka_sink_stages_where_check_looks() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "topic": "t", "checkpointLocation": "/c"}
    assert kafka_options(given).ledger == f"/c/{SINKS}/kafka"


def test_check_exits_with_4_if_the_guarantee_breaks(tmp_path: Path) -> None:
    place = make_checkpoint(tmp_path / "c", kafka(0, 0), kafka(10, 10))
    log = make_log(tmp_path / "log")
    result = run(place, "--log", log, "--kafka-retention", "7 days", *LOCAL)
    assert result.exit_code == 4
    assert " BREAKS " in result.stdout
    assert 'horizon="7 days"' in result.stdout
    found = findings(place, "--log", log, "--kafka-retention", "7 days", *LOCAL)
    assert found["source-clocks"][0]["level"] == "breaks the guarantee"
    assert "2% of the records are late" in found["recent-batches"][0]["evidence"]
    body = json.loads(run(place, "--log", log, "--kafka-retention", "7 days", "--json").stdout)
    assert (body["status"], body["exit_code"], body["name"]) == ("breaks", 4, "orders")


def test_with_a_checkpoint_alone_check_names_the_missing_options(tmp_path: Path) -> None:
    place = make_checkpoint(tmp_path / "c", kafka(0, 0), kafka(10, 10))
    result = run(place)
    assert result.exit_code == 0, result.output
    for flag in ("--properties", "--log", "--catalog", "--kafka-retention", "--source-option"):
        assert flag in result.stdout, flag
    # They are one entry, by what would settle them.
    heads = [line.split()[:2] for line in result.stdout.split("\n") if re.match(" [A-Z]+ ", line)]
    told = [rule["rule"] for rules in findings(place).values() for rule in rules
            if rule["level"] == "cannot be told"]  # fmt: skip
    assert [head for head in heads if head[0] == "UNKNOWN"] == [["UNKNOWN", str(len(told))]]
    order = ["BREAKS", "COSTS", "UNKNOWN", "FINE"]
    assert sorted(heads, key=lambda head: order.index(head[0])) == heads
    for rule in told:
        assert re.search(rf"\b{rule}\b", result.stdout), rule
    assert f"{len(told)} cannot be told" in result.stdout
    # And one by one, where that is asked for.
    listed = run(place, "--all")
    assert listed.stdout.count(" UNKNOWN ") == len(told)
    assert "--entity-name orders --describe" in listed.stdout


def test_only_commands_to_copy_are_longer_than_80_columns(tmp_path: Path) -> None:
    place = make_checkpoint(tmp_path / "c", kafka(0, 0), kafka(10, 10))
    assert all(len(line) <= 80 for line in run(place).stdout.split("\n"))
    long = [line for line in run(place, "--all").stdout.split("\n") if len(line) > 80]
    assert all(line.strip().startswith("kafka-configs.sh") for line in long)


def test_settings_in_the_checkpoint_override_given_ones(place: Path) -> None:
    (found,) = findings(place, *LOCAL, "--conf", "spark.sql.shuffle.partitions=64")[
        "shuffle-partitions"
    ]
    assert found["level"] == "fine"
    assert "spark.sql.shuffle.partitions=64 changes nothing" in found["evidence"]


@pytest.mark.parametrize(
    ("retention", "flags", "code", "said"),
    [("1 day", (), 4, "horizon 1 hour"), ("1 day", ("--horizon", "1 day"), 0, "horizon 1 day"),
     ("7 days", (), 4, "give --late drop."), ("7 days", ("--late", "emit"), 4, "pass again"),
     ("7 days", ("--late", "drop"), 0, "dropped as late")],
)  # fmt: skip
def test_check_judges_by_the_options_of_the_next_start(
    tmp_path: Path, place: Path, retention: str, flags: tuple[str, ...], code: int, said: str
) -> None:
    log = make_log(tmp_path / "log", slowest_sources=(('["orders",0]', 1, False),), late=0)
    given = (place, "--log", log, "--kafka-retention", retention, *flags)
    assert run(*given).exit_code == code
    (found,) = findings(*given)["horizon-retention"]
    assert said in found["evidence"]
    assert ("--late" in found["evidence"]) == (code == 4 and not flags)


def test_check_reports_problems_in_the_last_micro_batches_of_a_log(
    tmp_path: Path, place: Path
) -> None:
    """A source partition whose clock stands, clamped records, and late records."""
    log = MetricsLog(tmp_path / "log")
    now_ms = 1_700_000_000_000
    for number in range(10):
        at_ms = now_ms + 10_000 * number
        times = {"newest_ms": at_ms, "low_watermark_ms": now_ms, "gc_watermark_ms": now_ms}
        log.batch(batch(number, gc_source="p7", future=330, late=100, **times), at_ms)
    found = findings(place, "--log", tmp_path / "log", "--late", "emit")["recent-batches"]
    assert [(one["level"], one["evidence"].split()[0]) for one in found] == [
        ("breaks the guarantee", "LATE"), ("costs speed or memory", "STALLED"),
        ("costs speed or memory", "FUTURE"),
    ]  # fmt: skip
    assert "held by source partition p7." in found[1]["evidence"]
    assert found[1]["change"] == "dedup remedies stalled"
    shown = run(place, "--log", tmp_path / "log")
    assert shown.exit_code == 4
    assert "dedup remedies future" in " ".join(shown.stdout.split())
    well = make_log(tmp_path / "well", late=0)
    (fine,) = findings(place, "--log", well)["recent-batches"]
    assert fine["level"] == "fine"
    assert "at most 1 % of the records were late or clamped" in fine["evidence"]


def test_a_log_reveals_a_weaker_guarantee_than_exactly_once(tmp_path: Path, place: Path) -> None:
    """Also if its last micro-batch read no filter: its duplicates were in the tail."""
    log = MetricsLog(tmp_path / "log")
    shown = {"filter_false_positive": 0, "filter_unconfirmed": 9}
    for number, fields in enumerate((shown, {"filter_false_positive": 0})):
        made = batch(number, **fields)
        assert made.guarantee == ("at-least-once", "at-most-once", None)[number + 1]
        log.batch(made, 1000 * number)
    assert batch(0).guarantee == "exactly-once"
    (found,) = findings(place, "--log", tmp_path / "log")["guarantee"]
    assert "at-most-once" in found["evidence"]


def test_a_log_of_numbered_records_selects_their_rules_and_options(
    tmp_path: Path, place: Path
) -> None:
    log = MetricsLog(tmp_path / "log")
    for number in range(3):
        made = sequence_batch(number, run_id=f"run-{number}", expired_before_ms=None)
        log.batch(made, 1000 * number)
    told = findings(place, "--log", tmp_path / "log")
    assert "each of the last 3 runs was one micro-batch" in told["expire-after"][0]["evidence"]
    assert not {"horizon-retention", "pyspark-memory", "guarantee"} & told.keys()
    for flag, value in (("--catalog", tmp_path), ("--horizon", "1 day"), ("--late", "drop")):
        why = refused(2, place, "--log", tmp_path / "log", flag, value)
        assert f"uses dedup_by_sequence, which has no {flag[2:]}; leave {flag} out." in why
    # By event time.
    log.batch(sequence_batch(3), 3000)
    (found,) = findings(place, "--log", tmp_path / "log")["expire-after"]
    assert "by the timestamps of records" in found["evidence"]


@pytest.mark.parametrize("make", [batch, sequence_batch])
def test_check_takes_the_size_of_rows_from_the_log(tmp_path: Path, place: Path, make: Any) -> None:
    """The micro-batch with the largest rows counts. `dedup run` knows its files instead."""
    log = MetricsLog(tmp_path / "log")
    for number, row_bytes in enumerate((200, 800, 0)):
        rows = make(number).records_in + make(number).heartbeats
        log.batch(make(number, bytes_in=row_bytes * rows), 1000 * number)
    (found,) = findings(place, "--log", tmp_path / "log", *LOCAL)["arrow-batches"]
    assert found["evidence"].startswith("Rows have 800 bytes on average")
    if make is batch:
        output = run_output(tmp_path)
        assert "arrow-batches" not in findings(output, "--log", tmp_path / "log")


def test_the_record_of_dedup_run_overrides_the_log(tmp_path: Path) -> None:
    output = run_output(tmp_path, guarantee="at-least-once")
    make_log(tmp_path / "log")
    (found,) = findings(output, "--log", tmp_path / "log")["guarantee"]
    assert "at-least-once" in found["evidence"]


def test_check_accepts_another_late_policy_for_the_next_dedup_run(tmp_path: Path) -> None:
    record = Record.read(run_output(tmp_path, timestamp="ts"))
    assert record is not None
    assert of_run(Facts(), record).late == "emit"
    assert of_run(Facts(late="drop"), record).late == "drop"


def test_the_certificate_shows_that_a_query_uses_processing_time(
    tmp_path: Path, place: Path
) -> None:
    catalog = make_catalog(tmp_path / "catalog", shards=6, timestamp="processing time")
    found = findings(place, "--catalog", catalog, *LOCAL)
    assert "source-clocks" not in found
    assert str(catalog) in found["catalog-place"][0]["evidence"]


def test_a_query_that_has_not_started_is_reported_as_such(tmp_path: Path) -> None:
    """`dedup catalog adopt` leaves such a checkpoint."""
    place = tmp_path / "c"
    place.mkdir()
    (place / "metadata").write_text(json.dumps({"id": QUERY}))
    for folder in ("offsets", "commits"):
        result = run(place, *LOCAL)
        assert result.exit_code == 0
        assert "not started yet" in result.stdout
        (place / folder).mkdir()


def test_a_truncated_older_offset_entry_is_skipped(tmp_path: Path) -> None:
    place = make_checkpoint(tmp_path / "c", kafka(0), kafka(500), kafka(510))
    (place / "offsets/0").write_text("v1\n{")
    (source,) = read_checkpoint(str(place)).sources or ()
    assert source.kind == "kafka"


# --- the output of `dedup run`


def run_output(tmp_path: Path, *, timestamp: str | None = None, **given: Any) -> Path:
    (tmp_path / "in").mkdir()
    options = RunOptions.make(
        input=tmp_path / "in", output=tmp_path / "out", id=("id",), horizon="7 days",
        timestamp=timestamp, file_format="csv", output_format="csv", **given,
    )  # fmt: skip
    options.output.mkdir()
    Record(
        options=options.fixed(), schema={}, pattern=None, partitioned=False, compressed=False,
        shards=4, rules=options.rules(), query_id=QUERY,
    ).write(options.output)  # fmt: skip
    make_checkpoint(options.checkpoint, '{"logOffset":0}')
    make_catalog(options.catalog)
    return options.output


def test_the_output_of_dedup_run_settles_every_rule(tmp_path: Path) -> None:
    found = findings(run_output(tmp_path), *LOCAL)
    levels = {finding["level"] for each in found.values() for finding in each}
    assert "cannot be told" not in levels
    assert "breaks the guarantee" not in levels


def test_given_settings_override_those_of_dedup_run(tmp_path: Path) -> None:
    found = findings(run_output(tmp_path), "--conf", "spark.master=local[16]")
    assert "12 of 16 cores" in found["shuffle-partitions"][0]["evidence"]


def test_a_damaged_record_of_dedup_run_is_rejected(tmp_path: Path) -> None:
    output = run_output(tmp_path)
    (output / "_dedup.json").write_text('{"format": 1, "options"')
    assert "_dedup.json cannot be read" in refused(2, output)


def test_a_record_that_lacks_options_is_rejected(tmp_path: Path) -> None:
    output = run_output(tmp_path)
    record = Record.read(output)
    assert record is not None
    replace(record, rules={}).write(output)
    assert "_dedup.json" in refused(2, output)


# --- bad input


def test_a_place_without_a_checkpoint_of_dedup_is_rejected(tmp_path: Path) -> None:
    assert "holds no checkpoint" in refused(2, tmp_path / "nothing")
    (tmp_path / "notes.txt").write_text("hello")
    assert "holds no checkpoint" in refused(2, tmp_path)
    assert "holds no checkpoint" in refused(2, tmp_path / "notes.txt")
    assert "s3a://bucket/c cannot be read" in refused(2, "s3a://bucket/c")
    place = make_checkpoint(tmp_path / "c", kafka(1), operator="dedupe")
    assert "a query without dedup_by_id" in refused(2, place)


@pytest.mark.parametrize(
    "content",
    ["", "v1", "v1\n", 'v1\n{"batchWatermarkMs":0,"conf":{"spark.sq', 'v1\n{"conf":{}}\n',
     'v1\n{"conf":{}}\n{"orders":{"0":12', "v1\n[]\n5", "v9\n{}\n5", "v2\n{}\n5", "\x00\x01\n\n\n"],
)  # fmt: skip
def test_truncated_last_offsets_are_reported_as_damage(tmp_path: Path, content: str) -> None:
    place = make_checkpoint(tmp_path / "c", kafka(1), kafka(2))
    (place / "offsets/1").write_text(content)
    assert "offsets/1 is damaged: it is cut short" in refused(3, place)


@pytest.mark.parametrize("content", [b"", b'{"id":"ab', b"[]", b"\xff\xfe", b"null"])
def test_damaged_metadata_is_reported(place: Path, content: bytes) -> None:
    (place / "metadata").write_bytes(content)
    assert "metadata is damaged" in refused(3, place)


@pytest.mark.parametrize("content", ["", "v1", "v1\n{", "v1\n[]", "v1\n5"])
def test_a_truncated_operator_log_does_not_stop_check(place: Path, content: str) -> None:
    (place / "state/0/_metadata/metadata").write_text(content)
    assert run(place, *LOCAL).exit_code == 0


def test_a_folder_in_place_of_an_offset_log_entry_is_rejected(place: Path) -> None:
    (place / "offsets/0").unlink()
    (place / "offsets/0").mkdir()
    assert "offsets/0 cannot be read" in refused(2, place)


def test_a_query_option_that_names_another_query_is_rejected(tmp_path: Path, place: Path) -> None:
    assert run(place, "--query", QUERY).exit_code == 0
    assert f"of query {QUERY}, not of --query orders" in refused(2, place, "--query", "orders")
    log = make_log(tmp_path / "log")
    assert run(place, "--query", "orders", "--log", log).exit_code == 4


def test_a_missing_catalog_is_rejected(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query without records has no catalog; if Spark cannot tell, it counts as missing."""

    def no_spark() -> NoReturn:
        raise DedupError("Spark does not start")

    monkeypatch.setattr(check_work, "reading_session", no_spark)
    assert "holds no catalog of query" in refused(2, place, "--catalog", tmp_path / "none")


def test_a_damaged_certificate_is_reported(tmp_path: Path, place: Path) -> None:
    catalog = make_catalog(tmp_path / "catalog")
    (catalog / QUERY / "certificate.json").write_text("{")
    assert "certificate" in refused(3, place, "--catalog", catalog)


def test_a_log_of_another_query_is_rejected(tmp_path: Path, place: Path) -> None:
    log = make_log(tmp_path / "log", query_id="another")
    assert "has no micro-batch of query" in refused(2, place, "--log", log)
    assert "not a folder of metrics logs" in refused(2, place, "--log", tmp_path / "none")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--conf", "spark.master"), "--conf spark.master is not KEY=VALUE"),
        (("--conf", "=yarn"), "--conf = is not KEY=VALUE"),
        (("--conf", "maxOffsetsPerTrigger=5"), "not a Spark setting"),
        (("--source-option", "maxOffsetsPerTrigger"), "is not KEY=VALUE"),
        (("--kafka-retention", "a week"), "--kafka-retention='a week' is not a duration"),
        (("--horizon", "-5 days"), "--horizon='-5 days' is not a duration"),
        (("--horizon", "0s"), "--horizon 0s must be at least a millisecond"),
        (("--late", "never"), "--late never must be one of emit, drop"),
        (("--conf", "spark.sql.shuffle.partitions=xyz"), "=xyz must be a positive integer"),
        (("--conf", "spark.sql.shuffle.partitions=0"), "=0 must be a positive integer"),
        (("--properties", "/nowhere/at/all"), "--properties /nowhere/at/all cannot be read"),
        (("--properties", "/"), "--properties / cannot be read"),
    ],
)
def test_invalid_flags_are_rejected(place: Path, arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(2, place, *arguments)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"spark.master local\nwhat\n", "line 2: it is not KEY VALUE"), (b"\xff\xfe", "UTF-8")],
)
def test_properties_that_cannot_be_read_are_rejected(
    tmp_path: Path, place: Path, content: bytes, says: str
) -> None:
    (tmp_path / "p").write_bytes(content)
    assert says in refused(2, place, "--properties", tmp_path / "p")


def test_retention_is_a_duration_or_forever() -> None:
    assert retention("1 hour", option="x") == HOUR_MS
    assert retention("-1", option="x") == retention("forever", option="x") == FOREVER_MS


# --- the screen


def test_the_screen_shows_the_worst_finding_first_and_a_summary() -> None:
    fine = Finding(rule="all-well", level=Level.FINE, evidence="Nothing to do.")
    broken = Finding(
        rule="worst",
        level=Level.BREAKS,
        evidence="It is " + "very " * 20 + "bad: spark.sql.shuffle.partitions=200.",
        change="spark.sql.streaming.statefulOperator.useStrictDistribution=true-and-much-longer",
        takes=Takes.RESTART,
    )
    lines = findings_lines([fine, broken])
    texts = [line.plain for line in lines]
    assert texts[0].split() == ["BREAKS", "worst"]
    assert texts[-2].split() == ["FINE", "all-well"]
    assert broken.change in [text.strip() for text in texts]
    assert all(len(text) <= 80 for text in texts if broken.change not in text)
    assert " ".join(" ".join(texts).split()).count(broken.evidence) == 1
    change = next(line for line in lines if broken.change in line.plain)
    assert change.spans[0].style == "bold"
    assert summary_line([fine, broken]).plain == ("2 looked at: 1 breaks the guarantee, 1 fine")


def test_only_rules_that_an_option_would_settle_are_folded() -> None:
    settled, other = (
        Finding(rule=rule, level=Level.UNKNOWN, evidence=evidence)
        for rule, evidence in (("speed", "Not known. Give --conf KEY=VALUE."), ("odd", "No idea."))
    )
    lines = [line.plain for line in findings_lines([settled, other], fold=True)]
    assert [line.split() for line in lines[:2]] == [["UNKNOWN", "odd"], ["No", "idea."]]
    assert lines[2].endswith(" 1 rule needs another option to be judged; --all lists them")
    assert [line.strip() for line in lines[3:]] == ["--properties or --conf: speed"]


def test_markup_in_a_finding_is_printed_as_text() -> None:
    odd = Finding(
        rule="r", level=Level.COSTS, evidence="Topic [bold]x[/] is odd.", change="[red]=1"
    )
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for line in findings_lines([odd]):
        console.print(line)
    assert "Topic [bold]x[/] is odd." in (text := console.export_text())
    assert "[red]=1" in text


@pytest.mark.parametrize(
    ("options", "topics", "partitions"),
    [
        ({"subscribe": "orders, payments"}, ("orders", "payments"), None),
        ({"assign": '{"orders": [0, 1], "payments": [4]}'}, ("orders", "payments"), 3),
        ({"subscribepattern": "or.*"}, (), None),
    ],
)
def test_the_options_of_kafka_name_its_topics(
    options: dict[str, str], topics: tuple[str, ...], partitions: int | None
) -> None:
    from dedup.spark.driver.stream_sources import _topics

    assert _topics(options) == (topics, partitions)
