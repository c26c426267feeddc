"""`dedup demo`: the main job on made-up events, twice, with every figure checked."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from rich.console import Console
from rich.text import Text

from dedup.cli.demo import made_events as made
from dedup.cli.figures import Figures, table
from dedup.cli.progress import Reporter
from dedup.cli.run.drain import RunOutcome
from dedup.cli.run.run_options import RunOptions
from dedup.cli.run.work import run
from dedup.cli.stop import StopRequest
from dedup.core.duration import format_ms, iso
from dedup.errors import ConfigError

#: So small that most IDs must leave Spark state for segments: 256 KiB at the default size.
_STATE_BYTES_PER_EVENT = 0.65
_FEWEST_EVENTS = 50_000
_REDELIVERED = 20_000
#: Above the filters' target for the union of all, which is 1 %.
_FPR_LIMIT = 0.02


@dataclass(frozen=True, slots=True)
class Check:
    """One figure against what it must be."""

    name: str
    value: object
    expected: str
    good: bool


def demo(
    folder: Path | None,
    *,
    events: int,
    seed: int,
    talk: Reporter,
    show: Console | None,
    stop: StopRequest,
) -> dict[str, Any]:
    """Run the demonstration.

    Parameters
    ----------
    folder : Path or None
        New or empty folder that keeps input and output; None: a temporary one.
    events, seed : int
        See `made_events.make_stream`.
    talk : Reporter
        Hears of the progress.
    show : rich.console.Console or None
        Gets the tables.
    stop : StopRequest
        Stops it.

    Returns
    -------
    dict
        ``status`` is ``ok``, ``wrong`` or ``interrupted``; ``checks`` lists every figure.
    """
    if events < _FEWEST_EVENTS:
        raise ConfigError(f"--events {events} fills no segments; give {_FEWEST_EVENTS} or more.")
    if folder is None:
        scratch = Path(tempfile.mkdtemp(prefix="dedup-demo-"))
        try:
            return _demo(scratch, events, seed, talk, show, stop)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--folder {folder} is not empty; give a new one.")
    return _demo(folder, events, seed, talk, show, stop)


def _demo(
    folder: Path, events: int, seed: int, talk: Reporter, show: Console | None, stop: StopRequest
) -> dict[str, Any]:
    begin_s = time.monotonic()
    stream, truth = made.make_stream(events, seed)
    made.write_files(stream, folder / "input", seed)
    talk.note(
        f"{truth.records_in:,} records in {made.FILES} files: {truth.duplicate:,} are duplicates, "
        f"{truth.late:,} late, {truth.null_id:,} without an ID; "
        f"{format_ms(made.SPAN_MS)} of event time, horizon {format_ms(made.HORIZON_MS)}"
    )
    options = RunOptions.make(
        input=folder / "input",
        id=("event_id",),
        timestamp="event_time",
        horizon=format_ms(made.HORIZON_MS),
        lateness=format_ms(made.LATENESS_MS),
        output=folder / "output",
        duplicates=folder / "duplicates",
        files_per_trigger=made.FILES_PER_TRIGGER,
        state_budget_bytes=int(events * _STATE_BYTES_PER_EVENT),
        driver_memory="1g",
    )
    first = run(options, talk, stop=stop)
    if first.interrupted:
        return {"status": "interrupted"}
    checks = _first_checks(first.figures, truth) + _output_checks(options, stream, truth)

    sent = made.write_redelivery(stream, folder / "input", seed, _REDELIVERED)
    talk.note(f"Restarting, after a file came that delivers {sent:,} of the records once more")
    second = run(options, talk, stop=stop)
    if second.interrupted:
        return {"status": "interrupted"}
    checks += _second_checks(second, sent)

    good = all(check.good for check in checks)
    if show is not None:
        show.print(check_table(checks))
        show.print(table(first.figures, "first run"))
        verdict = "Every figure is right." if good else "SOME FIGURES ARE WRONG."
        show.print(f"{verdict} {time.monotonic() - begin_s:.0f} s.")
    return {
        "status": "ok" if good else "wrong",
        "first_run": first.figures.to_json(),
        "second_run": second.figures.to_json(),
        "checks": [
            {"name": c.name, "value": c.value, "expected": c.expected, "good": c.good}
            for c in checks
        ],
    }


def _first_checks(figures: Figures, truth: made.Truth) -> list[Check]:
    counts, levels = figures.counts, figures.levels
    checks = [
        _equal("records in", counts["records_in"], truth.records_in),
        _equal("  unique", counts["unique"], truth.unique),
        _equal("  duplicate", counts["duplicate"], truth.duplicate),
        _equal("  late", counts["late"], truth.late),
        _equal("  null ID", counts["null_id"], truth.null_id),
        _equal("files read", figures.files, made.FILES),
        _equal("GC watermark", iso(levels["gc_watermark_ms"]), iso(truth.gc_watermark_ms)),
    ]
    for name in ("segments_written", "segments_merged", "segments_expired", "filter_negative"):
        checks.append(_above(name.replace("_", " "), counts[name], 0))
    checks.append(_above("catalog reads", figures.reads, 0))
    unknown = counts["filter_negative"] + counts["filter_false_positive"]
    rate = counts["filter_false_positive"] / unknown if unknown else 1.0
    limit = f"at most {_FPR_LIMIT:.0%}"
    checks.append(Check("false-positive rate", f"{rate:.2%}", limit, rate <= _FPR_LIMIT))
    live, total = levels["live_ids"] or 0, truth.unique + truth.late
    checks.append(Check("live IDs", live, f"below {total:,}", 0 < live < total))
    return checks


def _output_checks(options: RunOptions, stream: made.Stream, truth: made.Truth) -> list[Check]:
    output = _read(options.output)
    delivered = {name for name in stream.ids if name is not None}
    named = sorted(
        (name, moment)
        for name, moment in zip(
            output.column("event_id").to_pylist(),
            output.column("event_time").cast(pa.timestamp("ms", "UTC")).cast("int64").to_pylist(),
            strict=True,
        )
        if name is not None
    )
    repeats = sum(
        1
        for (name, earlier), (other, later) in pairwise(named)
        if name == other and later - earlier <= made.HORIZON_MS
    )
    missing = len(delivered - {name for name, _ in named})
    duplicates = _read(options.duplicates) if options.duplicates else output.slice(0, 0)
    return [
        _equal("rows in the output", output.num_rows, truth.emitted),
        _equal("IDs twice in a horizon", repeats, 0),
        _equal("IDs missing from the output", missing, 0),
        _equal("rows in the side output", duplicates.num_rows, truth.duplicate),
    ]


def _second_checks(second: RunOutcome, sent: int) -> list[Check]:
    counts = second.figures.counts
    return [
        _equal("restart: records in", counts["records_in"], sent),
        _equal("restart: duplicate", counts["duplicate"], sent),
        _equal("restart: let through", counts["emitted"], 0),
    ]


def _read(folder: Path) -> Any:
    return ds.dataset(folder, format="parquet", partitioning="hive").to_table()


def _equal(name: str, value: object, expected: object) -> Check:
    text = f"{expected:,}" if isinstance(expected, int) else str(expected)
    return Check(name, value, text, value == expected)


def _above(name: str, value: int, least: int) -> Check:
    return Check(name, value, f"more than {least}", value > least)


def check_table(checks: list[Check]) -> Any:
    """Return a table for `rich` of figures and of what they must be."""
    from rich import box
    from rich.table import Table

    rows = Table(
        title="checked", box=box.SIMPLE, title_justify="left", padding=(0, 1), pad_edge=False
    )
    rows.add_column("", no_wrap=True)
    rows.add_column("figure", no_wrap=True)
    rows.add_column("is", justify="right", no_wrap=True)
    rows.add_column("must be", justify="right", no_wrap=True)
    for check in checks:
        value = f"{check.value:,}" if isinstance(check.value, int) else str(check.value)
        mark = "ok" if check.good else Text("WRONG", style="red")
        rows.add_row(mark, check.name, value, check.expected)
    return rows
