"""The dashboard, the alert rules and their page: only what is exported, in queries that parse."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

import dedup.tools.watch
from dedup.cli.remedies import read_page
from dedup.core.forecast import SLOWEST_SOURCES
from dedup.tools.watch.health import HISTORY, LEAST_EVIDENCE, NOTABLE_SHARE, WINDOW, Status
from dedup.tools.watch.metrics_log import FILE_BYTES, FILES
from dedup.tools.watch.series import (
    FAMILIES,
    MAX_QUERIES,
    MAX_SOURCES,
    PREFIX,
    QUERY_GAUGES,
    SEQUENCE_SERIES,
    SERIES,
    SINK_SERIES,
)

FOLDER = Path(dedup.tools.watch.__file__).parent
TESTS = Path(__file__).with_name("alert_rules_test.yml")
VALUES = {"status": {str(one) for one in Status}, "state": {"active", "idle"}}
#: Label names of each metric, and their values where these are known.
EXPORTED: dict[str, dict[str, set[str]]] = {
    **{
        one.exported: {
            one.label: {
                value
                for series in (*SERIES, *SEQUENCE_SERIES)
                if series.name == one.name
                for value in series.fields
            }
        }
        if one.label
        else {}
        for one in FAMILIES
    },
    **{
        one.exported: {"sink": set()} | ({one.label: set(one.fields)} if one.label else {})
        for one in SINK_SERIES
    },
    **{
        PREFIX + name: {label: VALUES.get(label, set()) for label in labels}
        for name, (labels, _) in QUERY_GAUGES.items()
    },
}


def panels() -> list[dict[str, Any]]:
    return json.loads((FOLDER / "grafana.json").read_text())["panels"]


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return group["rules"]


def queries() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5m").replace("$query", ".*")
            yield panel["title"], text.replace("$__range", "6h")
    for rule in alerts():
        yield rule["alert"], rule["expr"]


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_queries_parse_and_name_what_is_exported(where: str, query: str) -> None:
    promql_parser.parse(query)
    names = set(re.findall(r"\bdedup_\w+", query))
    assert names
    assert names <= set(EXPORTED), where
    labels = {label for name in names for label in EXPORTED[name]} | {"query"}
    for label, _, value in re.findall(r"(\w+)(=~|=)\"([^\"]*)\"", query):
        assert label in labels, f"{where}: {label}"
        known = {v for name in names for v in EXPORTED[name].get(label, ())}
        if label != "query":
            assert set(value.split("|")) <= known, f"{where}: {value}"
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        assert set(re.split(r",\s*", grouped)) <= labels, where


def test_every_metric_is_documented_and_shown_or_a_known_exception() -> None:
    page = (FOLDER / "README.md").read_text()
    # The page names the operators as well, `dedup_by_id` and `dedup_by_sequence`.
    assert set(re.findall(r"`(dedup_(?!by_)\w+)`", page)) == set(EXPORTED)
    shown = {name for _, query in queries() for name in re.findall(r"\bdedup_\w+", query)}
    # Not on the dashboard: parts of what is.
    assert set(EXPORTED) - shown <= {
        "dedup_buckets", "dedup_tail_ids", "dedup_late_watermark_timestamp_seconds",
        "dedup_expiring_bytes", "dedup_filters_rebuilt_total", "dedup_segments_deleted_total",
        "dedup_catalog_written_ids_total", "dedup_records_emitted_total", "dedup_fullest_shard",
        "dedup_run_first_batch_timestamp_seconds", "dedup_bucket_seconds",
        "dedup_state_budget_bytes", "dedup_max_filter_state_bytes", "dedup_query_evidence_batches",
        "dedup_filter_sidecar_ids_total", "dedup_filter_state_bytes",
        "dedup_expected_lost_ids_total", "dedup_sink_bytes_total", "dedup_heartbeats_total",
        "dedup_received_bytes_total", "dedup_shard_count", "dedup_shards_without_kernel",
        "dedup_shards_without_files", "dedup_ids_forgotten_early_total",
    }  # fmt: skip


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or panel["description"]
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("title", ["Running", "Source lag", "Since the last micro-batch"])
def test_a_panel_does_not_freeze_when_the_driver_is_gone(title: str) -> None:
    """A stat shows the last value of its series, and they end with the driver."""
    (panel,) = (panel for panel in panels() if panel["title"] == title)
    assert panel["type"] == "stat"
    for target in panel["targets"]:
        assert re.search(r"last_over_time\(\w+{query=~\"\$query\"}\[\$__range\]\)", target["expr"])


def test_alerts_say_what_to_do() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert "$labels.query" in rule["annotations"]["summary"]
        assert rule["annotations"]["description"].endswith(".")
    runbooks = {rule["alert"]: rule["annotations"].get("runbook") for rule in alerts()}
    topics = {text.removeprefix("dedup remedies ") for text in runbooks.values() if text}
    assert topics <= set(read_page())
    assert {"stalled", "lagging", "late", "future"} <= topics
    assert f"> {NOTABLE_SHARE}" in next(r["expr"] for r in alerts() if r["alert"] == "DedupLate")


@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="needs promtool (Debian and Ubuntu: apt install prometheus)",
)
@pytest.mark.parametrize("what", [["check", FOLDER / "alerts.yml"], ["test", TESTS]])
def test_promtool_accepts_the_alert_rules(what: list[str | Path]) -> None:
    action, path = what
    done = subprocess.run(["promtool", action, "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_made_to_fire() -> None:
    asked = TESTS.read_text()
    for rule in alerts():
        assert f'alertname="{rule["alert"]}"' in asked


def test_the_page_states_the_numbers_of_the_code() -> None:
    page = " ".join((FOLDER / "README.md").read_text().split())
    words = {4: "four", 5: "five", 10: "ten", 100: "a hundred"}
    assert f"the last {words[WINDOW]} micro-batches" in page
    assert f"fewer than {words[LEAST_EVIDENCE]} micro-batches" in page
    assert f"rotated at {FILE_BYTES >> 20} MiB, {words[FILES]} files kept" in page
    assert f"at most {words[MAX_QUERIES]} queries" in page
    assert f"{words[SLOWEST_SOURCES]} a query, and by {MAX_SOURCES} names" in page
    assert f"the last {words[HISTORY].removeprefix('a ')}, or" in page
