"""`dedup demo`: runs `dedup run` twice over made-up events, and checks every figure."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyarrow.dataset as ds
from rich import box
from rich.table import Table
from rich.text import Text

from dedup.cli import made_events as made
from dedup.cli.commands import Done
from dedup.cli.failures import FAILED, INTERRUPTED, OK
from dedup.cli.figures import Figures, table
from dedup.cli.flags import DemoFlags
from dedup.cli.run.options import RunOptions
from dedup.cli.run.progress import Reporter, reporting
from dedup.cli.run.work import run
from dedup.cli.stop import StopRequest, stop_on_signals
from dedup.errors import ConfigError
from dedup.values.duration import cell, format_ms, iso

#: State budget per event, in bytes. The budget is so small that most IDs must move to segments.
_STATE_BYTES_PER_EVENT = 0.65
_FEWEST_EVENTS = 50_000
_REDELIVERED = 20_000
#: Highest accepted rate of false positives. The target of all filters together is 1 %.
_FPR_LIMIT = 0.02
_INTERRUPTED = Done(INTERRUPTED, {"status": "interrupted"})


@dataclass(frozen=True, slots=True)
class Check:
    """A figure and its expected value."""

    name: str
    value: object
    expected: str
    good: bool


def demo(flags: DemoFlags) -> Done:
    if flags.events < _FEWEST_EVENTS:
        raise ConfigError(
            f"--events {flags.events} fills no segments; give {_FEWEST_EVENTS} or more."
        )
    if flags.folder is not None and flags.folder.exists() and any(flags.folder.iterdir()):
        raise ConfigError(f"--folder {flags.folder} is not empty; give a new one.")
    with (
        reporting(quiet=flags.quiet) as reporter,
        stop_on_signals() as stop,
        TemporaryDirectory(prefix="dedup-demo-", ignore_cleanup_errors=True) as scratch,
    ):
        return _demo(flags.folder or Path(scratch), flags, reporter, stop)


def _demo(folder: Path, flags: DemoFlags, reporter: Reporter, stop: StopRequest) -> Done:
    begin_s, seed = time.monotonic(), flags.seed
    stream, truth = made.make_stream(flags.events, seed)
    made.write_files(stream, folder / "input")
    reporter.note(
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
        state_budget_bytes=int(flags.events * _STATE_BYTES_PER_EVENT),
        driver_memory="1g",
    )
    first = run(options, reporter, stop=stop)
    if first.interrupted:
        return _INTERRUPTED
    checks = _first_checks(first.figures, truth) + _output_checks(options, stream, truth)

    sent = made.write_redelivery(stream, folder / "input", seed, _REDELIVERED)
    reporter.note(f"Restarting with a new file that delivers {sent:,} of the records once more")
    second = run(options, reporter, stop=stop)
    if second.interrupted:
        return _INTERRUPTED
    checks += [
        _equal(f"restart: {name.replace('_', ' ')}", second.figures.counts[name], expected)
        for name, expected in (("records_in", sent), ("duplicate", sent), ("emitted", 0))
    ]

    good = all(check.good for check in checks)
    verdict = "Every figure is right." if good else "SOME FIGURES ARE WRONG."
    lines: list[str | Table] = [
        check_table(checks),
        table(first.figures, "first run"),
        f"{verdict} {time.monotonic() - begin_s:.0f} s.",
    ]
    body = {
        "status": "ok" if good else "wrong",
        "first_run": first.figures.to_json(),
        "second_run": second.figures.to_json(),
        "checks": [asdict(check) for check in checks],
    }
    return Done(OK if good else FAILED, body, [] if flags.quiet else lines)


def _first_checks(figures: Figures, truth: made.Truth) -> list[Check]:
    counts, levels = figures.counts, figures.levels
    rate = 1.0 if figures.fpr is None else figures.fpr
    live, total = levels["live_ids"] or 0, truth.unique + truth.late
    grown = ("segments_written", "segments_merged", "segments_expired", "filter_negative")
    return [
        _equal("records in", counts["records_in"], truth.records_in),
        _equal("  unique", counts["unique"], truth.unique),
        _equal("  duplicate", counts["duplicate"], truth.duplicate),
        _equal("  late", counts["late"], truth.late),
        _equal("  null ID", counts["null_id"], truth.null_id),
        _equal("files read", figures.files, made.FILES),
        _equal("GC watermark", iso(levels["gc_watermark_ms"]), iso(truth.gc_watermark_ms)),
        *(_positive(name.replace("_", " "), counts[name]) for name in grown),
        _positive("catalog reads", figures.reads),
        Check(
            "false-positive rate", f"{rate:.2%}", f"at most {_FPR_LIMIT:.0%}", rate <= _FPR_LIMIT
        ),
        Check("live IDs", live, f"below {total:,}", 0 < live < total),
    ]


def _output_checks(options: RunOptions, stream: made.Stream, truth: made.Truth) -> list[Check]:
    output = _read(options.output).to_pandas().sort_values("event_time")
    gaps = output.groupby("event_id").event_time.diff()
    repeats = int((gaps <= pd.Timedelta(made.HORIZON_MS, "ms")).sum())
    delivered = set(stream.records["event_id"].to_pylist())
    missing = len(delivered - {*output.event_id, None})
    assert options.duplicates is not None
    return [
        _equal("rows in the output", len(output), truth.emitted),
        _equal("IDs twice in a horizon", repeats, 0),
        _equal("IDs missing from the output", missing, 0),
        _equal("rows in the side output", _read(options.duplicates).num_rows, truth.duplicate),
    ]


def _read(folder: Path) -> Any:
    return ds.dataset(folder, format="parquet", partitioning="hive").to_table()


def _equal(name: str, value: object, expected: object) -> Check:
    return Check(name, value, cell(expected), value == expected)


def _positive(name: str, value: int) -> Check:
    return Check(name, value, "more than 0", value > 0)


def check_table(checks: list[Check]) -> Table:
    rows = Table(
        title="checked", box=box.SIMPLE, title_justify="left", padding=(0, 1), pad_edge=False
    )
    rows.add_column("", no_wrap=True)
    rows.add_column("figure", no_wrap=True)
    rows.add_column("is", justify="right", no_wrap=True)
    rows.add_column("must be", justify="right", no_wrap=True)
    for check in checks:
        mark = "ok" if check.good else Text("WRONG", style="red")
        rows.add_row(mark, check.name, cell(check.value), check.expected)
    return rows
