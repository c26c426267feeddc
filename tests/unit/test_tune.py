"""`dedup tune` from the shell: from a number and a log, and all that can be wrong with them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dedup.cli.app import app
from dedup.cli.run.record import log_of
from dedup.cli.tune import check_writable
from dedup.core.tail import Tail
from dedup.spark.machine import machine_cores
from dedup.tools.tuning import candidates
from dedup.tools.tuning import load as drive
from dedup.tools.tuning import tune as tuning
from dedup.tools.tuning.options import TuneOptions, count, demand_of
from dedup.tools.watch.metrics_log import MetricsLog
from tests.support.batch_metrics import START_MS, batch, sequence_batch
from tests.support.tuning import COSTS

pytest.importorskip("vl_convert", reason="needs the extra 'report'")
ASKED = ["--ids-per-day", "5M", "--horizon", "1 d"]
SMALL = ["--ids-per-day", "60k", "--horizon", "1 day", "--state-budget-bytes", "65536"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer choices; what is left is measured as ever."""
    monkeypatch.setattr(candidates, "FPRS", (0.01, 0.001))
    monkeypatch.setattr(candidates, "BUCKETS_TRIED", (8,))
    monkeypatch.setattr(candidates, "BUDGETS", ())
    monkeypatch.setattr(candidates, "FILTER_BOUNDS", ())


def tune(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["tune", *arguments])


def refused(*arguments: str) -> str:
    """What is said of bad input, in one clear line."""
    done = tune(*arguments)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    return str(done.stderr)


def test_a_number_is_measured_and_reported(tmp_path: Path, quick: None) -> None:
    report = tmp_path / "report.html"
    given = ["--cores", "2", "--filter-state-bytes", "8192"]
    done = tune(*SMALL, *given, "--html", str(report), "--json", "--quiet")
    assert done.stderr == "", "of no progress"
    body = json.loads(done.stdout)
    assert done.exit_code == body["exit_code"] == 0, done.output
    assert body["verdict"].startswith(("KEEP", "CHANGE"))
    assert body["false_negatives"] == 0
    assert body["expected_live_ids"] == 62_500
    assert [c["fpr"] for c in body["candidates"]] == [0.01, 0.001]
    for found in body["candidates"]:
        assert (found["state_budget_bytes"], found["filter_state_bytes"]) == (65_536, 8192)
        assert found["unknown_ids_asked"] > 50_000
        assert found["known_ids_asked"] > 5_000
        assert found["measured_fpr_low"] < found["fpr"]
        assert found["segment_bytes"] > found["sidecar_bytes"] > found["state_bytes"] / 4 > 0
        assert found["ms_per_million"] > 0
    assert all(ns > 0 for ns in body["costs_ns"].values())
    assert 62_500 < body["live_ids"] < 62_500 + 60_000 / 8
    assert f"{body['live_ids']:,} live IDs" in body["verdict"]
    assert sum(body["shard_ids"]) == pytest.approx(body["live_ids"], rel=0.01)
    assert "make bench-sizing" in report.read_text()
    sizing = {"fpr", "bucket-length", "state-budget-bytes", "filter-state-bytes"}
    assert sizing | {"shards", "memory"} == {finding["rule"] for finding in body["findings"]}
    assert body["verdict"] in report.read_text()


def test_the_screen_shows_verdict_table_advice_and_evidence(quick: None) -> None:
    done = tune(*SMALL)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert "60,000 new IDs a day (as given), horizon 1 day, lateness 1 hour" in lines[0]
    assert any(line.startswith(("KEEP ", "CHANGE ")) for line in lines)
    assert sum(line.startswith((">", "*", " ")) and "%-" in line for line in lines) == 2
    assert "0 false negatives" in " ".join(lines)
    assert max(map(len, lines)) <= 100
    assert "costs of this machine" in done.stderr
    assert "fpr=0.001" in done.stderr
    assert "costs of this machine" not in done.stdout


def test_a_duplicate_that_passes_a_trial_makes_it_exit_3(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filters are right, but their answers are misused: the tail is not asked."""
    honest = drive.process

    def forgetful(state: Any, *arguments: Any, **named: Any) -> Any:
        return honest(replace(state, tail=Tail.empty()), *arguments, **named)

    monkeypatch.setattr(tuning, "measure", lambda *_: COSTS)
    monkeypatch.setattr(drive, "process", forgetful)
    done = tune(*SMALL, "--json")
    assert done.exit_code == 3
    body = json.loads(done.stdout)
    assert body["status"] == "false negatives"
    assert body["false_negatives"] > 100


def log(folder: Path, count: int = 6, *, query: str | None = None, cut: bool = False) -> Path:
    written = MetricsLog(folder)
    for number in range(count):
        fields: dict[str, Any] = {} if query is None else {"query_id": query, "query_name": query}
        made = batch(number, horizon_ms=86_400_000, unique=950, duplicate=50, records_in=1000,
                     live_ids=50_000, state_budget_bytes=1 << 16, **fields)  # fmt: skip
        written.batch(made, START_MS + 10_000 * number)
    if cut:
        (path,) = folder.glob("*.jsonl")
        path.write_bytes(path.read_bytes()[:-100])
    return folder


def test_a_log_is_read_even_if_it_is_cut_mid_line(tmp_path: Path, quick: None) -> None:
    whole = demand_of(TuneOptions(log=str(log(tmp_path / "whole"))))
    assert whole.origin == "the metrics log of query orders, 6 micro-batches"
    done = tune("--log", str(log(tmp_path / "cut", cut=True)), "--json")
    body = json.loads(done.stdout)
    assert done.exit_code == 0, done.output
    assert body["origin"] == "the metrics log of query orders, 5 micro-batches"
    assert body["ids_per_day"] == pytest.approx(950 / 10 * 86_400)
    # No log has the number of cores.
    assert (body["shards"], body["cores"]) == (4, machine_cores())
    assert body["cores_given"] is False
    (today,) = [c for c in body["candidates"] if c["today"]]
    assert (today["bucket_length"], today["state_budget_bytes"]) == (None, 1 << 16)
    assert "seen-fpr" in {finding["rule"] for finding in body["findings"]}


def test_given_options_override_the_log(tmp_path: Path) -> None:
    asked = TuneOptions(
        log=str(log(tmp_path)), horizon="2 days", lateness="10 minutes", batch="5 s", cores=16,
        duplicate_share=0.5, id_bytes=40, ids_per_day="1.5M", fpr=0.2, late="drop",
        bucket_length="8 hours", stable_timestamps=True, filter_state_bytes="2 MiB",
    )  # fmt: skip
    found = demand_of(asked)
    assert (found.horizon_ms, found.lateness_ms, found.batch_ms) == (172_800_000, 600_000, 5000)
    assert (found.cores, found.duplicates, found.key_bytes) == (16, 0.5, 40)
    assert found.ids_per_day == 1_500_000
    assert (found.today.fpr, found.today.bucket_length) == (0.2, "8 hours")
    assert found.today.filter_state_bytes == 2 << 20
    assert found.forgets_at_late
    assert found.seen_live is None


def test_a_given_sizing_is_compared_with_the_log_and_a_given_load_is_not(tmp_path: Path) -> None:
    folder = str(log(tmp_path))
    assert demand_of(TuneOptions(log=folder, fpr=0.2)).seen_live == 50_000
    for load in ({"ids_per_day": "1M"}, {"horizon": "2 days"}, {"lateness": "0 s"}):
        assert demand_of(TuneOptions(log=folder, **load)).seen_live is None


def test_a_log_of_several_queries_needs_the_query_option(tmp_path: Path) -> None:
    for name in ("one", "two"):
        log(tmp_path, query=name)
    assert "has logs of one, two; choose with --query" in refused("--log", str(tmp_path))
    assert demand_of(TuneOptions(log=str(tmp_path), query="two")).origin.count("two")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "The load is missing"),
     (["--ids-per-day", "many", "--horizon", "1 day"], "--ids-per-day many is not a number"),
     (["--ids-per-day", "-5", "--horizon", "1 day"], "--ids-per-day -5 is not a number"),
     (["--ids-per-day", "0", "--horizon", "1 day"], "error: With 0 new IDs a day (as given)"),
     (["--ids-per-day", "5M"], "--horizon is missing"),
     (["--ids-per-day", "5M", "--horizon", "soon"], "'soon' is not a duration"),
     (["--ids-per-day", "5M", "--horizon", "0 s"], "--horizon 0 s must be at least"),
     ([*ASKED, "--batch", "0 s"], "--batch 0 s"), ([*ASKED, "--fpr", "1"], "--fpr 1.0 must be a"),
     ([*ASKED, "--bucket-length", "0 s"], "--bucket-length 0 s must be at least"),
     ([*ASKED, "--bucket-length", "1 s"], "makes more than 128 buckets"),
     ([*ASKED, "--bucket-length", "400 days"], "400 days is longer than the horizon"),
     ([*ASKED, "--id-bytes", "1025"], "IDs of 1,025 bytes"),
     ([*ASKED, "--fpr", "1e-9"], "--fpr 1e-09"),
     ([*ASKED, "--duplicate-share", "1.5"], "must be from 0 to below 1"),
     ([*ASKED, "--html", "/no/such/x.html"], "cannot be written"),
     (["--log", "/no/such/folder"], "/no/such/folder is not a folder of metrics logs"),
     (["--log", "x", "--shards", "3"], "--shards and --log exclude each other: the log shows"),
     (["--catalog", "x", "--checkpoint", "y", "--shards", "3"], "the catalog shows the shards"),
     ([*ASKED, "--late", "never"], "--late never must be"),
     # Before the catalog and its checkpoint are read.
     (["--catalog", "x", "--checkpoint", "y", "--horizon", "soon"], "'soon' is not a duration"),
     (["--catalog", "x", "--checkpoint", "y", "--ids-per-day", "many"], "many is not a number"),
     # As the operator has it.
     ([*ASKED, "--state-budget-bytes", "16383"],
      "--state-budget-bytes 16383 must be a number of bytes"),
     ([*ASKED, "--filter-state-bytes", "-1"], "--filter-state-bytes -1 must be"),
     (["--log", "x", "--sample", "y", "--id", "z"], "--sample and --log exclude each other"),
     (["--sample", "y", "--horizon", "1 d"], "--sample needs --id"),
     (["--sample", "/no/such", "--id", "a", "--horizon", "1 d"], "/no/such does not exist"),
     (["--catalog", "x"], "--catalog needs --checkpoint"),
     (["--catalog", "/no/such", "--checkpoint", "y"], "holds no catalog"),
     ([*ASKED, "--id", "a", "--read-option", "x"], "KEY=VAL")],
)  # fmt: skip
def test_bad_input_is_reported_in_one_clear_line(arguments: list[str], said: str) -> None:
    assert said in refused(*arguments)


def test_an_empty_sample_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    arguments = ["--sample", str(tmp_path), "--id", "a", "--horizon", "1 d"]
    assert "holds no files." in refused(*arguments)
    assert "holds no csv files" in refused(*arguments, "--format", "csv")


def test_a_query_of_numbered_records_has_no_filters_to_be_sized(tmp_path: Path) -> None:
    MetricsLog(tmp_path).batch(sequence_batch(0), START_MS)
    told = refused("--log", str(tmp_path))
    assert "pumps is one of dedup_by_sequence, which has no filters" in told


def test_a_log_folder_without_a_query_is_refused(tmp_path: Path) -> None:
    assert "has logs of no query" in refused("--log", str(tmp_path))
    given = ("--log", str(log(tmp_path)), "--query", "other")
    assert "has logs of orders; and not other" in refused(*given)


def test_a_report_that_cannot_be_written_is_an_error(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report").mkdir()
    assert "Is a directory" in refused(*SMALL, "--html", str(tmp_path / "report"))
    # Before anything is measured.
    monkeypatch.setattr(tuning, "measure", None)
    long = refused(*SMALL, "--html", str(tmp_path / ("x" * 300)))
    assert "cannot be written: File name too long" in long


def test_checking_whether_a_report_can_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old.html").write_text("old")
    for name in ("old.html", "new.html"):
        check_writable(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["old.html"]
    assert (tmp_path / "old.html").read_text() == "old"


def test_a_report_that_fills_the_disk_is_an_error_with_a_remedy(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(tuning, "measure", lambda *_: COSTS)
    monkeypatch.setattr(Path, "write_text", full)
    done = tune(*SMALL, "--html", str(tmp_path / "r.html"))
    assert f"No space left on device ({tmp_path / 'r.html'})" in done.stderr
    assert "dedup remedies local-disk" in done.stderr
    assert "report: " not in done.stdout


@pytest.mark.parametrize(
    ("text", "number"),
    [("20M", 2e7), ("1.5b", 1.5e9), ("300000", 3e5), ("2,000,000", 2e6), ("10 k", 1e4),
     ("1e6", 1e6)],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(text: str, number: float) -> None:
    assert count(text, "--ids-per-day") == number


def test_the_output_of_a_run_stands_for_its_log(tmp_path: Path) -> None:
    (tmp_path / "_dedup.json").write_text("{}")
    (tmp_path / "_metrics").mkdir()
    given = ("--horizon", "1 day", "--query", "orders", "--late", "never")
    assert f"{tmp_path}/_metrics has logs of no query" in refused("--log", str(tmp_path))
    log(tmp_path / "_metrics")
    assert "late" in refused("--log", str(tmp_path), *given)
    assert log_of(str(tmp_path)) == str(tmp_path / "_metrics")
    assert log_of("elsewhere") == "elsewhere"
