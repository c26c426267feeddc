"""What a restart would do is said from the markers and the checkpoint, and the screen shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dedup.cli.app import app
from dedup.cli.sink import sink_lines
from dedup.errors import ConfigError
from dedup.sinks.inspection import SinkState, SlotState, next_start
from dedup.sinks.kafka.inspection import HeldBack, KafkaInspection
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.spark.driver.checkpoint_log import Progress, read_progress


def marker(slot: int, batch_id: int) -> Marker:
    return Marker(
        query_id="q", sink="kafka", slot=slot, batch_id=batch_id, rows=5, content="ab",
        run_id="r", writer="host:1", time_ms=1_700_000_000_000,
    )  # fmt: skip


def progress(next_batch_id: int, *, again: bool = False) -> Progress:
    return Progress(query_id="q", next_batch_id=next_batch_id, again=again)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (progress(8), "runs micro-batch 8, of which nothing is published"),
        (progress(8, again=True), "runs micro-batch 8 again, of which nothing"),
        (progress(7, again=True), "micro-batch 7 again: slices 0, 2 are published. If their"),
        (progress(6), "is refused: its checkpoint is at micro-batch 6, and micro-batch 7"),
        (None, "A checkpoint whose next micro-batch is 8 publishes it"),
    ],
)
def test_the_next_start_is_described_from_markers_and_progress(
    at: Progress | None, said: str
) -> None:
    assert said in next_start([marker(0, 7), marker(1, 6), marker(2, 7)], at)


def test_a_micro_batch_that_is_published_whole_is_not_written_again() -> None:
    assert "published whole" in next_start(
        [marker(0, 6), marker(BATCH_SLOT, 7)], progress(7, again=True)
    )


@pytest.mark.parametrize(
    ("offsets", "commits", "next_batch_id", "again"),
    [([], [], 0, False), ([0], [], 0, True), ([0, 1], [0], 1, True), ([0, 1], [0, 1], 2, False)],
)
def test_progress_is_read_from_the_offset_and_commit_logs(
    tmp_path: Path, offsets: list[int], commits: list[int], next_batch_id: int, again: bool
) -> None:
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for log, numbers in (("offsets", offsets), ("commits", commits)):
        (tmp_path / log).mkdir()
        for number in numbers:
            (tmp_path / log / str(number)).write_text("v1\n{}")
    assert read_progress(str(tmp_path)) == progress(next_batch_id, again=again)


def test_the_screen_shows_slices_attempts_and_what_holds_readers_back() -> None:
    found = KafkaInspection(
        servers="h:9092",
        topic="out",
        markers="out-markers",
        sinks=(
            SinkState(
                query_id="q",
                sink="kafka",
                batch_id=7,
                slots=(
                    SlotState(marker=marker(BATCH_SLOT, 3)),
                    SlotState(marker=marker(0, 7), attempted=8, open=True),
                    SlotState(marker=marker(1, 6), attempted=7),
                ),
                restart="The next start.",
            ),
        ),
        held_back=(
            HeldBack(topic="out", partition=2, readable=10, end=15, since_ms=1_700_000_000_000),
        ),
        max_timeout_ms=900_000,
    )
    assert found.status == "held back"
    assert list(sink_lines(found.to_json())) == [
        "query q, sink kafka",
        "  slice  micro-batch          rows  published             writer",
        "  whole            3             5  2023-11-14T22:13:20Z  host:1",
        "      0            7             5  2023-11-14T22:13:20Z  host:1",
        "                   8  was attempted since; its transaction is open",
        "      1            6             5  2023-11-14T22:13:20Z  host:1",
        "                   7  was attempted since; which was aborted",
        "The next start.",
        "",
        "out-2: an open transaction holds readers of committed records back at offset 10,",
        "5 before the end, the first of them from 2023-11-14T22:13:20Z. It ends when its",
        "owner commits, or when its time limit is over (at most 15 minutes here).",
        "  kafka-transactions.sh --bootstrap-server h:9092 describe-producers --topic out "
        "--partition 2",
    ]


def test_an_inspection_says_if_nothing_is_published() -> None:
    nothing = KafkaInspection(
        servers="h:9092", topic="t", markers="t-markers", sinks=(), held_back=(),
        max_timeout_ms=None,
    )  # fmt: skip
    assert nothing.status == "ok"
    assert list(sink_lines(nothing.to_json())) == [
        "There are no markers: nothing is published.",
        "",
        "No open transaction holds readers of committed records back.",
    ]


def test_client_properties_are_read_and_their_errors_show_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def inspect_output(_: str, options: dict[str, str]) -> None:
        given.append(options)
        raise ConfigError("No broker.")

    monkeypatch.setattr("dedup.tools.inspect_output", inspect_output)
    file = tmp_path / "client.properties"
    file.write_text("# login\nkafka.security.protocol=SASL_SSL\nkafka.sasl.password = s3cret\n")
    command = ["sink", "inspect", "dedup_kafka", "topic=t"]
    for more in ((), ("--properties", str(file))):
        assert "No broker." in CliRunner().invoke(app, [*command, *more]).output
    login = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.password": "s3cret"}
    assert given == [{"topic": "t"}, {"topic": "t", **login}]
    file.write_text("=s3cret")
    refused = CliRunner().invoke(app, [*command, "--properties", str(file)]).output
    assert "line 1: it is not KEY VALUE" in refused
    assert "s3cret" not in refused
