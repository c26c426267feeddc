"""What a notebook shows of metrics, findings and watched queries."""

from __future__ import annotations

import re
import threading
from dataclasses import fields
from typing import Any

import pytest

from dedup.core.metrics import Metrics
from dedup.sinks.figures import SinkMetrics
from dedup.tools.check.findings import Findings, breaks, findings_of, fine
from dedup.tools.watch.live import live
from dedup.values.html import table
from tests.support.batch_metrics import QUERY, RUN, START_MS, batch, sequence_batch, watched

HOSTILE = "<script>alert('orders')</script>"


def sink(**values: Any) -> SinkMetrics:
    given = {
        "query_id": QUERY, "run_id": RUN, "batch_id": 1, "sink": "kafka", "rows": 900,
        "bytes": 70_000, "retries": 0, "fenced": None, "undelivered": 0, "task_us": None,
        "driver_us": 1_500,
    }  # fmt: skip
    return SinkMetrics(**{**given, **values})


@pytest.mark.parametrize("metrics", [batch(1), sequence_batch(1), sink()], ids=lambda m: type(m))
def test_every_field_of_metrics_is_shown_once(metrics: Metrics) -> None:
    text = metrics._repr_html_()
    for field in fields(metrics):
        assert text.count(f"<td>{field.name}</td>") == 1


def test_metrics_show_times_as_text_and_durations_as_numbers() -> None:
    text = batch(0, now_ms=START_MS, late_watermark_ms=None)._repr_html_()
    for name, value in {
        "now_ms": "2023-11-14T22:13:20Z", "gc_watermark_ms": "2023-11-14T21:13:20Z",
        "late_watermark_ms": "-", "horizon_ms": "3,600,000", "begins": "False",
    }.items():  # fmt: skip
        assert f"<td>{name}</td><td>{value}</td>" in text
    numbered = sequence_batch(0)._repr_html_()
    assert "<td>expired_before_ms</td><td>2023-11-14T21:13:20Z</td>" in numbered


class LostQuery:
    """A query whose Java process is gone after the first look."""

    id, name, lastProgress = QUERY, "orders", None  # noqa: N815
    looks = 0

    def exception(self) -> None:
        return None

    @property
    def runId(self) -> str:  # noqa: N802
        return RUN if not self.looks else str(self.isActive)

    @property
    def isActive(self) -> bool:  # noqa: N802
        self.looks += 1
        if self.looks > 1:
            raise ConnectionRefusedError("Java is gone")
        return True


def test_live_says_that_a_query_has_stopped_whose_java_process_is_gone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    live(LostQuery())  # type: ignore[arg-type]
    for thread in threading.enumerate():
        if thread.name == "dedup-live":
            thread.join(30)
    assert capsys.readouterr().out == "orders: STOPPED: Java is gone\n"


def test_findings_are_a_list_that_a_notebook_shows_as_a_table() -> None:
    found = findings_of([("size", fine("All fits.")), ("clock", breaks("It `jumps`.", "a=1\nb=2"))])
    assert isinstance(found, Findings)
    assert [one.rule for one in found] == ["clock", "size"], "the worst comes first"
    assert re.findall("<td>.*?</td>", found._repr_html_(), re.DOTALL) == [
        f"<td>{text}</td>"
        for text in (
            "BREAKS", "clock", "It <code>jumps</code>.", "<code>a=1\nb=2</code>",
            "takes effect at the next restart", "FINE", "size", "All fits.", "-", "-",
        )
    ]  # fmt: skip


def test_a_watched_query_shows_its_verdict_its_micro_batches_and_its_sinks() -> None:
    timed = [(START_MS + 10_000 * n, batch(n)) for n in range(20)]
    one = watched(timed, timed[-1][0], sinks=[sink(batch_id=n) for n in (18, 19)])
    text = one._repr_html_()
    assert text.count("<b>OK</b> orders: ") == 1
    rows = re.findall("<tr><td>.*</td></tr>", text)
    assert len(rows) == 11, "the window, and a sink"
    first = "<tr><td>19</td><td>0.80 s</td><td>10.0 s</td><td>1,000</td><td>100</td><td>2,400</td>"
    assert rows[0].startswith(first)
    assert rows[-1].startswith("<tr><td>kafka</td><td>2</td><td>1,800</td><td>140,000</td>")
    numbered = watched([(START_MS, sequence_batch(0))], START_MS)._repr_html_()
    assert "<th>missing</th><th>producers</th>" in numbered


def test_a_query_without_micro_batches_shows_its_verdict_alone() -> None:
    text = watched([], START_MS, heard_ms=START_MS)._repr_html_()
    assert "<b>OK</b> orders: no fault so far" in text
    assert "<table" not in text


@pytest.mark.parametrize(
    "text",
    [
        batch(1, query_name=HOSTILE, gc_source=HOSTILE, slowest_sources=((HOSTILE, 1, False),)),
        sink(sink=HOSTILE),
        findings_of([(HOSTILE, breaks(HOSTILE, HOSTILE))]),
        watched([(START_MS, batch(0))], START_MS, name=HOSTILE, sinks=[sink(sink=HOSTILE)]),
        watched([], START_MS, ended=HOSTILE),
    ],
    ids=["metrics", "sink metrics", "findings", "watched", "error"],
)
def test_names_and_texts_cannot_add_tags(text: Any) -> None:
    shown = text._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script" not in shown


def test_a_table_names_a_class_for_each_row() -> None:
    assert table(["n"], [[1000], [None]], ["best", "other"]).splitlines()[1:-1] == [
        "<tr><th>n</th></tr>",
        '<tr class="best"><td>1,000</td></tr>',
        '<tr class="other"><td>-</td></tr>',
    ]
