"""Which choice is recommended, and what is advised for which reason."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dedup.catalog.cache import DEFAULT_CACHE_BYTES
from dedup.cli.tune import table
from dedup.core.filter_choice import room_bytes
from dedup.errors import MissingExtraError
from dedup.tools.check.facts import Facts
from dedup.tools.check.findings import Finding, Findings, Level, Takes
from dedup.tools.check.rules import advise as check_rules
from dedup.tools.tuning import candidates, report
from dedup.tools.tuning.advice import advise
from dedup.tools.tuning.candidates import (
    Candidate,
    Choice,
    best_of_each,
    choices,
    explore,
    named,
    try_out,
)
from dedup.tools.tuning.demand import DAY_MS, Demand, Repeats, Sizing
from dedup.tools.tuning.report import Tuning, charts
from dedup.tools.tuning.trial import Trial
from dedup.values.html import escaped
from tests.support.tuning import COSTS, candidate, demand

vl_convert = pytest.importorskip("vl_convert", reason="needs the extra 'report'")
BASE = Sizing(fpr=0.1)
HOUR_MS = 3_600_000


def choice(*others: Candidate, today: Candidate | None = None) -> Choice:
    first = today or candidate(BASE)
    return Choice((first, *others), min((first, *others), key=lambda c: c.cost))


def repeats(apart: list[float], behind: list[float] = (), **fields: Any) -> Repeats:
    """Hours."""
    made = {
        "apart_ms": np.sort(np.array(apart, np.float64) * HOUR_MS).astype(np.int64),
        "behind_ms": np.sort(np.array(behind, np.float64) * HOUR_MS).astype(np.int64),
        "records": 10_000,
        "same_timestamp": 0,
        "span_ms": 10 * DAY_MS,
    }
    return Repeats(**(made | fields))


def advice(rule: str, asked: Demand, chosen: Choice | None = None) -> Finding:
    (found,) = [f for f in advise(asked, chosen or choice()) if f.rule == rule]
    return found


def test_a_sample_shows_whether_spark_must_measure_rows() -> None:
    setting = "spark.sql.execution.arrow.maxBytesPerBatch=2147483647"
    assert advice("arrow-batches", demand(row_bytes=800)).change == setting
    assert advice("arrow-batches", demand(row_bytes=8000)).level is Level.FINE
    assert "arrow-batches" not in rules(demand())


def rules(asked: Demand, chosen: Choice | None = None) -> set[str]:
    return {found.rule for found in advise(asked, chosen or choice())}


# ---- which choice --------------------------------------------------------------------------------


def test_every_value_of_one_option_at_a_time_is_tried() -> None:
    wanted = choices(demand(today=BASE))
    assert wanted[0] == BASE
    assert len(wanted) == len(set(wanted)) == 1 + 4 + 3 + 2 + 2
    assert all(len(candidates.changed(sizing, BASE)) <= 1 for sizing in wanted)


def test_the_cost_of_a_choice_is_that_of_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Trial(
        scale=1.0, head_bytes=1_000, tail_bytes=20_000, filter_bytes=30_000, sst_bytes=500_000,
        blocks_read=0.25, ids_written=2.0, filters_asked=4.0,
    )  # fmt: skip
    monkeypatch.setattr(candidates, "run", lambda *arguments: done)
    asked = demand(shards=3, ids_per_day=950 * 86_400, duplicates=0.05, batch_ms=1_000)

    def comes_to(budget: int) -> Candidate:
        sizing = Sizing(state_budget_bytes=budget, filter_state_bytes=20_000)
        return try_out(asked, sizing, COSTS, lambda share: None)

    found = comes_to(15_000)
    assert (found.state_bytes, found.sidecar_bytes) == (3 * 35_000, 3 * 30_000)
    assert found.segment_bytes == 3 * 500_000
    assert found.reads_per_s == pytest.approx(1_000 * 0.25)
    # A thousand records do not fill a micro-batch of a query that catches up.
    assert found.ms_per_million == COSTS.ms_per_million(done, 35_000, 10_000)
    assert comes_to(1 << 20).state_bytes == 3 * (21_000 + 20_000)
    # The budget does not bound the list of segments.
    assert comes_to(100).state_bytes == 3 * (1_000 + 20_000)


def test_filters_in_the_state_row_follow_the_load_unless_the_bound_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = Trial(scale=1.0, filter_bytes=1e9)
    monkeypatch.setattr(candidates, "run", lambda *arguments: done)

    def held_bytes(rows: int, bound: int | None) -> float:
        sizing = Sizing(filter_state_bytes=bound)
        return try_out(of_rows(rows), sizing, COSTS, lambda share: None).state_bytes

    least = room_bytes(100, 0, 3 << 19, by_load=True)
    assert [held_bytes(100, bound) for bound in (None, 0, 1 << 24)] == [least, 0, 1 << 24]
    assert held_bytes(1_000_000, None) == 3 << 19


def test_the_bound_of_filters_in_state_needs_no_trial_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = []

    def counted(*arguments: object) -> Trial:
        run.append(Trial(scale=1.0, asked=100, known=10, forgotten=1, filter_bytes=1e6))
        return run[-1]

    monkeypatch.setattr(candidates, "run", counted)
    monkeypatch.setattr(candidates, "FILTER_BOUNDS", (0, 1 << 24))
    found = explore(demand(today=BASE), COSTS, lambda done, what: None)
    assert len(found.candidates) == 1 + 4 + 3 + 2 + 2
    shared = [c for c in found.candidates if replace(c.sizing, filter_state_bytes=None) == BASE]
    assert [c.sizing.filter_state_bytes for c in shared] == [None, 0, 1 << 24]
    assert {id(c.trial) for c in shared} == {id(run[0])}
    assert len({c.state_bytes for c in shared}) == 3
    # What was looked up counts once.
    told = Tuning(demand(), found, COSTS, Findings())
    assert len(run) == len(found.trials) == told.false_negatives == 10
    assert "1,000 new and 100 known IDs" in told.measured


def test_an_option_changes_only_if_that_is_worth_it() -> None:
    tried = [
        candidate(BASE, ms=1000),
        candidate(replace(BASE, fpr=0.01), ms=700),
        candidate(replace(BASE, fpr=0.001), ms=690, gib=1.1),
        candidate(replace(BASE, bucket_length="90 minutes"), ms=860),
        candidate(replace(BASE, state_budget_bytes=1 << 22), ms=840),
    ]
    assert best_of_each(tried, BASE) == replace(BASE, fpr=0.01, state_budget_bytes=1 << 22)
    assert best_of_each(tried[:1], BASE) == BASE


def test_the_best_values_are_tried_together_and_the_cheapest_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = {"fpr=0.01": 700, "state_budget_bytes=4194304": 780}

    def fake(asked: Demand, sizing: Sizing, costs_of: object, tell: Any, *_: object) -> Candidate:
        tell(1.0)
        return candidate(sizing, ms=costs.get(named(sizing, BASE), 1000))

    monkeypatch.setattr("dedup.tools.tuning.candidates.try_out", fake)
    both = "fpr=0.01, state_budget_bytes=4194304"
    for together, wanted in ((600, both), (710, "fpr=0.01")):
        costs[both] = together
        told: list[float] = []
        found = explore(demand(today=BASE), COSTS, lambda done, what, told=told: told.append(done))
        assert named(found.recommended.sizing, BASE) == wanted
        assert len(found.candidates) == len(choices(demand(today=BASE))) + 1
        assert found.today.sizing == BASE
        assert told == sorted(told)
        assert told[-1] == 1.0


def test_a_choice_that_another_beats_in_time_and_bytes_is_dominated() -> None:
    small, fast, worse, same = (
        candidate(Sizing(fpr=n / 10), gib=gib, ms=ms)
        for n, gib, ms in ((1, 1, 900), (2, 2, 500), (3, 2, 900), (4, 2, 500))
    )
    found = Choice((small, fast, worse, same), fast)
    assert [found.dominated(c) for c in found.candidates] == [False, False, True, False]


def test_waste_is_against_one_ideal_filter() -> None:
    found = candidate()
    assert found.bits_per_id == pytest.approx(8 * 2.5e6 / 0.99e6)
    assert found.wasted == pytest.approx(1 - 7.643856 / found.bits_per_id, abs=1e-4)
    empty = replace(found, trial=replace(found.trial, predicted_fpr=0.0, filter_bytes=0.0))
    assert empty.wasted is None
    assert empty.bits_per_id == 0


# ---- advice --------------------------------------------------------------------------------------


def test_a_change_comes_with_its_evidence_and_option() -> None:
    better = candidate(replace(BASE, fpr=0.003), ms=640, gib=1.25)
    found = advice("fpr", demand(today=BASE), choice(better))
    assert (found.level, found.change, found.takes) == (Level.COSTS, "fpr=0.003", Takes.RESTART)
    assert "1.56 times the time and 0.80 times the bytes of fpr=0.003" in found.evidence
    assert "1,000 instead of 640 ms" in found.evidence
    assert advice("bucket-length", demand(), choice(better)).level is Level.FINE
    assert advice("bucket-length", demand(), choice(better)).change is None


@pytest.mark.parametrize(
    ("shards", "cores", "level", "said"),
    [
        (4, 4, Level.FINE, "shards=4 on 4 cores"),
        # As `dedup check` has it.
        (16, 4, Level.FINE, "the fullest shard holds 1.0"),
        # How many state partitions there are is not known.
        (17, 4, Level.UNKNOWN, "If spark.sql.shuffle.partitions is already smaller, this costs"),
        (3, 4, Level.COSTS, "cores are idle"),
    ],
)
def test_the_number_of_shards_is_compared_with_the_cores(
    shards: int, cores: int, level: Level, said: str
) -> None:
    found = advice("shards", demand(shards=shards, cores=cores))
    assert found.level is level
    assert said in found.evidence
    if level is not Level.FINE:
        assert found.change == "spark.sql.shuffle.partitions=4"
        assert found.takes is Takes.BEGINNING


def test_shards_of_a_running_query_are_left_to_check_unless_cores_are_idle() -> None:
    found = advice("shards", demand(shards=17, cores=4, running=True))
    assert (found.level, found.change, found.takes) == (Level.UNKNOWN, None, None)
    assert "`dedup check` shows how many partitions" in found.evidence
    idle = advice("shards", demand(shards=3, cores=4, running=True))
    assert (idle.level, idle.takes) == (Level.COSTS, Takes.BEGINNING)
    # Cores that no one gave prove nothing.
    found = advice("shards", demand(shards=3, cores=4, cores_given=False))
    assert found.level is Level.UNKNOWN
    assert "shards=3 on this machine's 4 cores" in found.evidence


def test_the_measured_skew_of_shards_is_reported() -> None:
    found = advice("shards", demand(shard_ids=(100, 300)))
    assert "1.50 times the mean" in found.evidence
    assert "2.40 times the mean" in advice("shards", demand(fullest=2.4)).evidence


def test_live_ids_of_a_running_query_are_compared_with_the_trials() -> None:
    """The trial has a million live IDs in each of two shards."""
    for alike in (None, 1_400_000, 2_900_000):
        assert "seen-live-ids" not in rules(demand(seen_live=alike))
    less = advice("seen-live-ids", demand(seen_live=1_000_000))
    assert (less.level, less.takes) == (Level.UNKNOWN, Takes.OUTSIDE)
    assert "1,000,000 live IDs, the trial of the query's options has 2,000,000" in less.evidence
    assert less.change == "give --stable-timestamps --late drop, or --ids-per-day"
    dropping = demand(seen_live=1_000_000, stable_timestamps=True, late="drop")
    assert advice("seen-live-ids", dropping).change == "give --ids-per-day"
    more = advice("seen-live-ids", demand(seen_live=4_000_000))
    assert more.change == "give --ids-per-day"
    assert "more IDs came" in more.evidence


def test_segments_that_the_trial_lacks_reveal_a_smaller_budget() -> None:
    found = advice("seen-segments", demand(seen_segments=12))
    assert "The query has 12 segments, but under state_budget_bytes=1048576 all" in found.evidence
    assert "So its state_budget_bytes is smaller" in found.evidence
    assert found.change == "give --state-budget-bytes"
    sealed = candidate(BASE)
    sealed = replace(sealed, trial=replace(sealed.trial, segments=0.5))
    for asked, chosen in ((12, choice(today=sealed)), (0, choice()), (None, choice())):
        assert "seen-segments" not in rules(demand(seen_segments=asked), chosen)


def test_repeats_beyond_the_horizon_break_the_guarantee() -> None:
    found = advice("horizon", demand(repeats=repeats([1, 2, 25, 30])))
    assert found.level is Level.BREAKS
    assert '2 repeats come later than horizon="1 day"' in found.evidence
    assert "the last one 1d 06:00:00 after it" in found.evidence
    assert found.change == 'horizon="2 days"'


def test_a_sample_shorter_than_the_horizon_proves_nothing() -> None:
    found = advice("horizon", demand(repeats=repeats([1, 2], span_ms=DAY_MS - 1)))
    assert found.level is Level.UNKNOWN
    assert advice("horizon", demand(repeats=repeats([]))).level is Level.UNKNOWN


def test_a_horizon_far_beyond_all_repeats_is_reported() -> None:
    found = advice("horizon", demand(repeats=repeats([0.5, 1.0])))
    assert (found.level, found.change) == (Level.COSTS, 'horizon="2 hours"')
    assert "12 times as long" in found.evidence
    assert advice("horizon", demand(repeats=repeats([0.5, 9.0]))).level is Level.FINE


def test_the_advised_lateness_covers_the_late_records() -> None:
    few = [0.5] * 500 + [5.0] * 10
    assert advice("lateness", demand(repeats=repeats([1], few))).level is Level.FINE
    found = advice("lateness", demand(repeats=repeats([1], [*few, *[1.5] * 100])))
    assert (found.level, found.change) == (Level.COSTS, 'lateness="2 hours"')
    assert "110 of 10,000 records are late" in found.evidence
    assert "behind by 01:30:00 at most" in found.evidence


def test_copies_with_the_first_ones_timestamp_suggest_stable_timestamps() -> None:
    same = repeats([1, 2, 3], same_timestamp=3)
    found = advice("stable-timestamps", demand(repeats=same))
    assert (found.change, found.takes) == ("stable_timestamps=True", Takes.BEGINNING)
    assert "12.0 filters" in found.evidence
    for other in (
        demand(repeats=replace(same, same_timestamp=2)),
        demand(repeats=same, stable_timestamps=True),
        demand(repeats=repeats([])),
    ):
        assert "stable-timestamps" not in rules(other)


def test_the_false_positive_rate_of_a_running_query_is_compared_with_its_target() -> None:
    high = advice("seen-fpr", demand(seen_fpr=(1200, 10_000)))
    assert (high.level, high.takes) == (Level.COSTS, Takes.OUTSIDE)
    assert "1,200 of 10,000" in high.evidence
    assert advice("seen-fpr", demand(seen_fpr=(900, 10_000))).level is Level.FINE
    # Chance alone may have put it above the target of 10 %.
    assert advice("seen-fpr", demand(seen_fpr=(1_020, 10_000))).level is Level.FINE


def test_a_catalog_larger_than_the_cache_is_reported() -> None:
    large = choice(today=candidate(BASE, gib=20))
    assert advice("cache-bytes", demand(), large).change == f"cache_bytes={25 * 2**30}"
    assert "cache-bytes" not in rules(demand())
    assert DEFAULT_CACHE_BYTES < 20 * 2**30


def of_rows(rows: int) -> Demand:
    """A demand with so many records of a shard in a micro-batch."""
    return demand(ids_per_day=rows * 86_400, duplicates=0.0, batch_ms=1000, shards=1)


def test_the_reported_memory_satisfies_dedup_check() -> None:
    found = advice("memory", demand())
    # A smaller share, followed to the letter, stops a query that runs.
    assert (found.level, found.change, found.takes) == (Level.FINE, None, None)
    told = re.search(r"needs ([\d,]+) MiB for each of its cores", found.evidence)
    assert told is not None
    needed = 4 * int(told[1].replace(",", ""))
    for overhead, level in ((needed, Level.FINE), (needed - 1, Level.COSTS)):
        settings = {"spark.executor.memoryOverhead": f"{overhead}m", "spark.executor.cores": "4"}
        facts = Facts(settings={"spark.master": "yarn", **settings}, complete=True)
        (judged,) = [f for f in check_rules(facts) if f.rule == "batch-memory"]
        assert judged.level is level


def test_the_title_shows_the_trigger_interval_and_whether_it_is_assumed() -> None:
    told = report.title(demand(batch_ms=60_000))
    assumed = "a micro-batch every 1 minute (assumed: give --batch)"
    assert told.endswith(f"2 shards on 2 cores, {assumed}")
    for batch_ms, every in (
        (9_321, "9321 milliseconds"), (10_321, "10 seconds"), (601_000, "10 minutes"),
        (2_840_904_000, "33 days"),
    ):  # fmt: skip
        assert report.title(demand(batch_ms=batch_ms, batch_known=True)).endswith(f"every {every}")


# ---- words, table, report ------------------------------------------------------------------------


def result(asked: Demand | None = None, **trial: Any) -> Tuning:
    today = candidate(BASE)
    better = candidate(replace(BASE, fpr=0.003), ms=640)
    better = replace(better, trial=replace(better.trial, **trial))
    chosen = choice(better, candidate(replace(BASE, bucket_length="6 hours"), ms=2000), today=today)
    asked = asked or demand(repeats=repeats([1, 2, 25]))
    return Tuning(asked, chosen, COSTS, advise(asked, chosen))


def test_the_verdict_says_what_to_keep_or_change() -> None:
    found = result()
    change = report.verdict(found.demand, found.choice)
    assert change.startswith("CHANGE to fpr=0.003 instead of 0.1:")
    alone = Choice(found.choice.candidates[:1], found.choice.today)
    assert report.verdict(found.demand, alone).startswith("KEEP bucket_length=None, fpr=0.1, state")
    tail_only = candidate(BASE)
    tail_only = replace(tail_only, trial=replace(tail_only.trial, filters_asked=0.0))
    told = report.verdict(found.demand, Choice((tail_only,), tail_only))
    assert "all fit into Spark state" in told


def test_the_table_marks_the_best_choice_and_dims_dominated_ones() -> None:
    found = result()
    lines = list(table(found.choice, running=True))
    assert [line.plain[0] for line in lines[1:4]] == ["*", ">", " "]
    assert str(lines[2].style) == "bold green"
    assert str(lines[3].style) == "dim"
    assert max(len(line.plain) for line in lines) <= 100
    assert "as the query has it, or given" in lines[-1].plain
    assert lines[-1].plain.endswith("K, M: KiB, MiB")
    assert len(lines[0].plain) == len(lines[1].plain)


@pytest.mark.parametrize(
    ("width", "gone"),
    [(97, []), (96, ["waste"]), (80, ["waste", "expect", "state"]), (60, ["waste", "expect",
     "state", "budget", "room", "sidecar"]), (10, ["waste", "expect", "state", "budget", "room",
     "sidecar", "reads/s", "bits"])],
)  # fmt: skip
def test_a_narrow_table_omits_the_least_important_columns(width: int, gone: list[str]) -> None:
    lines = [line.plain for line in table(result().choice, running=False, width=width)]
    names = [name for name, _, _ in report.COLUMNS]
    assert lines[0].split() == [name for name in names if name not in gone]
    assert max(map(len, lines)) <= max(width, 50)
    told = " ".join(lines)
    assert (f"--html show {', '.join(gone)}." in told) == bool(gone)


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0, "0%"), (0.00012, "0.012%"), (0.0123, "1.23%"), (0.1, "10.0%"), (1.0, "100.0%")],
)
def test_rates_are_short(share: float, shown: str) -> None:
    assert report.rate(share) == shown


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0B"), (999, "999B"), (344.4 * 2**20, "344M"), (3e9, "2.8G"), (999.6 * 2**20, "1.0G"),
     (2**70, "1048576P")],
)  # fmt: skip
def test_bytes_are_short(size_bytes: float, shown: str) -> None:
    assert report.amount(size_bytes) == shown


def test_json_and_verdict_show_the_same_live_ids() -> None:
    found = result()
    body = found.to_json()
    assert f"{body['live_ids']:,} live IDs" in body["verdict"]
    assert body["live_ids"] == 2_000_000
    assert sum(body["shard_ids"]) == pytest.approx(2_000_000, abs=2)
    assert body["expected_live_ids"] == found.demand.live_ids == 62_500


def test_one_forgotten_id_is_a_false_negative() -> None:
    assert result().to_json()["status"] == "ok"
    for bad in (result(forgotten=1), result(passed_again=1), result(wrongly_dropped=1)):
        assert bad.to_json()["status"] == "false negatives"
        assert bad.to_json()["false_negatives"] >= 1


def test_json_holds_every_figure_of_the_table() -> None:
    body = json.loads(json.dumps(result().to_json()))
    first, second, _ = body["candidates"]
    assert (first["today"], first["recommended"], second["recommended"]) == (True, False, True)
    assert second["fpr"] == 0.003
    assert first["measured_fpr_low"] < first["measured_fpr"] < first["measured_fpr_high"]
    assert {"horizon", "fpr", "shards"} <= {finding["rule"] for finding in body["findings"]}
    assert body["findings"][0]["level"] == "breaks the guarantee"


def test_the_report_needs_no_other_file() -> None:
    text = result().page()
    outside = re.sub(r'<script type="module">.*</script>', "", text, flags=re.S)
    specs = re.search(r'<script type="application/json" id="specs">(.*?)</script>', outside, re.S)
    assert specs is not None
    outside = outside.replace(specs.group(0), "")
    assert not re.findall(r"(?:src|href|url|@import)\s*[=(]", outside)
    assert "@@" not in outside
    assert text.count("</script>") == 2
    assert set(json.loads(specs.group(1))) == {"cost", "fill"}
    for place in json.loads(specs.group(1)):
        assert f'id="{place}"' in outside
    for finding in result().findings:
        assert escaped(finding.evidence) in outside
    assert 'tr class="recommended"' in outside
    assert "prefers-color-scheme: dark" in outside


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium (Debian and Ubuntu: apt install chromium)"
)
def test_the_report_fits_a_telephone(tmp_path: Path) -> None:
    """Nothing but the table, in its own box, is wider than the page."""
    (tmp_path / "report.html").write_text(result().page())
    # Chromium's own window is never so narrow.
    frame = """<iframe id=f src=report.html width=420 height=900></iframe><script>setTimeout(() => {
    const page = f.contentDocument, width = page.documentElement.clientWidth;
    const wide = [...page.querySelectorAll("body *")].filter((e) =>
      e.getBoundingClientRect().right > width && !e.closest(".wide"));
    document.title = [page.querySelectorAll("svg").length, width,
      page.documentElement.scrollWidth - width, wide.length].join(" ")}, 4000)</script>"""
    (tmp_path / "frame.html").write_text(frame)
    shown = subprocess.run(
        [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu",
         "--disable-background-networking", "--allow-file-access-from-files",
         "--virtual-time-budget=9000", "--dump-dom", (tmp_path / "frame.html").as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    title = re.search("<title>(.*?)</title>", shown.stdout)
    assert title is not None
    drawn, width, beyond, wide = map(int, title[1].split())
    assert (drawn, beyond, wide) == (2, 0, 0)
    assert width <= 420


def test_names_from_users_are_escaped_in_the_report() -> None:
    hostile = demand(origin="</script><script>alert(1)</script>")
    text = result(hostile).page()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_a_notebook_shows_verdict_choices_and_findings() -> None:
    text = result()._repr_html_()
    assert "<p>CHANGE to fpr=0.003 instead of 0.1: " in text
    assert text.count('<tr class="recommended">') == text.count('<tr class="today">') == 1
    for finding in result().findings:
        assert f"<td>{finding.rule}</td><td>{escaped(finding.evidence)}</td>" in text


def test_every_chart_is_one_that_vega_lite_draws() -> None:
    found = result()
    drawn = charts(found.choice)
    assert set(drawn) == {"cost", "fill"}
    for name, spec in drawn.items():
        svg = vl_convert.vegalite_to_svg({**spec, "width": 400})
        assert svg.startswith("<svg"), name
        marks = re.findall(r'class="mark-(\w+)', svg)
        assert set(marks) & {"symbol", "line", "area", "rect"}, name


def test_the_recommended_choice_is_drawn_on_top_of_equal_ones() -> None:
    today, same = candidate(BASE), candidate(replace(BASE, fpr=0.03))
    worse, small = candidate(replace(BASE, fpr=0.3), ms=9000), candidate(BASE, gib=1e-4)
    chosen = Choice((today, same, worse), today)
    points, curve = (charts(chosen)["cost"]["layer"][n]["data"]["values"] for n in (1, 0))
    assert [row["kind"] for row in points] == ["dominated", "other", "recommended"]
    assert curve[0]["ms"] == pytest.approx(today.ms_per_million)
    # Below a mebibyte bytes do not count, and the line of equal cost is level.
    level = charts(Choice((small, today), small))["cost"]["layer"][0]["data"]["values"]
    assert level[0]["ms"] == pytest.approx(small.ms_per_million) == pytest.approx(level[1]["ms"])


def test_the_current_and_the_recommended_choice_are_labelled() -> None:
    today = candidate(BASE, gib=3.2, ms=36_655)
    best, other = (candidate(replace(BASE, fpr=fpr), gib=3.3, ms=29_502) for fpr in (0.03, 0.01))
    layers = charts(Choice((today, best, other), best))["cost"]["layer"]
    texts = [layer for layer in layers if layer["mark"]["type"] == "text"]
    labels = [row["choice"] for layer in texts for row in layer["data"]["values"]]
    assert labels == ["no change", "fpr=0.03"]


def test_bytes_of_a_load_of_a_few_ids_are_not_worth_a_change() -> None:
    today = candidate(BASE, gib=3e-6)
    small = candidate(replace(BASE, bucket_length="90 minutes"), gib=2e-6)
    assert best_of_each([today, small], BASE) == BASE
    assert best_of_each([candidate(BASE, gib=3), replace(small, segment_bytes=2**31)], BASE) != BASE


def test_a_report_without_the_extra_says_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(MissingExtraError, match="pip install vl-convert-python"):
        report.check_extra()
