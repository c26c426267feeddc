"""`dedup tune`: read the load, measure choices of filter sizing, and print the best choice."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from dedup import tools
from dedup.cli.catalog import snapshot
from dedup.cli.commands import Done
from dedup.cli.failures import DAMAGE, OK
from dedup.cli.findings import findings_lines
from dedup.cli.flags import TuneFlags, pairs
from dedup.cli.run.input.bad_rows import explained
from dedup.cli.run.input.event_time import timestamp_column
from dedup.cli.run.input.files import file_order
from dedup.cli.run.input.inference import Inference
from dedup.cli.run.input.source import FILE, TIME, read_files
from dedup.cli.run.job import Job, resolve
from dedup.cli.run.options import RunOptions
from dedup.cli.run.query import schema_of
from dedup.cli.run.record import log_of
from dedup.cli.session import spark_session
from dedup.cli.terminal import Terminal, lines_width, wrapped
from dedup.errors import ConfigError
from dedup.spark.driver.checks import time_zone
from dedup.spark.driver.columns import named_column
from dedup.tools import TuneOptions
from dedup.tools.repair.opening import open_root
from dedup.tools.tuning import report
from dedup.tools.tuning.candidates import Choice
from dedup.tools.tuning.report import Tuning
from dedup.tools.tuning.sample import Sample
from dedup.tools.tuning.sample import read_sample as sample_of
from dedup.tools.tuning.tune import Progress

#: Columns that a narrow screen omits, the least important first.
_OPTIONAL = ("waste", "expect", "state", "budget", "room", "sidecar", "reads/s", "bits")


def tune(flags: TuneFlags) -> Done:
    with _progress(quiet=flags.quiet) as tell:
        result = _measured(flags, tell)
    lines = _lines(result)
    if flags.html is not None:
        flags.html.write_text(result.page(), encoding="utf-8")
        lines.append(f"report: {flags.html}")
    return Done(DAMAGE if result.false_negatives else OK, result.to_json(), lines)


def _measured(flags: TuneFlags, tell: Progress) -> Tuning:
    values = {field.name: getattr(flags, field.name) for field in fields(TuneOptions)}
    read_options = tuple(sorted(pairs(flags.read_option, "--read-option").items()))
    if flags.log is not None:
        values["log"] = log_of(flags.log)
    if flags.sample is not None:
        if not flags.id:
            raise ConfigError("--sample needs --id: the column of the record ID.")
        values["sample"] = partial(
            read_sample,
            input=flags.sample,
            id=tuple(flags.id),
            timestamp=flags.timestamp,
            timestamp_format=flags.timestamp_format,
            file_format=flags.format,
            schema=flags.schema,
            infer=flags.infer,
            order_files=flags.order_files,
            read_options=read_options,
        )
    options = TuneOptions(**values)
    if flags.html is not None:
        report.check_extra()
        check_writable(flags.html)
    tell(0.0, "reading")
    if options.catalog is not None and isinstance(options.checkpoint, str):
        root = open_root(options.catalog)
        options = replace(options, catalog=root, checkpoint=snapshot(root, options.checkpoint))
    return tools.tune(options, tell)


def check_writable(place: Path) -> None:
    """Raise ConfigError if a file cannot be written. An existing file stays unchanged."""
    existed = os.path.exists(place)
    try:
        with place.open("ab"):
            pass
        if not existed:
            place.unlink()
    except OSError as error:
        raise ConfigError(f"--html {place} cannot be written: {error.strerror}.") from None


def read_sample(
    *, input: str, id: tuple[str, ...], timestamp: str | None, spark: SparkSession | None = None,  # noqa: A002
    **options: Any,
) -> Sample:  # fmt: skip
    """Return a sample of the files that `dedup run` would read, in the same order.

    `options` are further options of `RunOptions` about reading. If `spark` is None, the function
    starts a session. Raises ConfigError if files or columns do not fit the options, and DataError
    if a file cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="dedup-tune-") as scratch:
        # `RunOptions` needs an output, but a sample writes nothing to it.
        run = RunOptions.make(
            input=input, id=id, timestamp=timestamp, horizon="1 day",
            output=Path(scratch, "output"), **options,
        )  # fmt: skip
        job = resolve(run)
        if not job.files.paths:
            raise ConfigError(f"--sample {run.input} holds no {job.files.file_format} files.")
        log = Path(scratch, "spark.log")
        own = spark_session(
            master=run.master, driver_memory=run.driver_memory, shards=run.cores, log=log
        )
        with own if spark is None else nullcontext(spark) as session:
            return _sample(session, job, input)


def _sample(spark: SparkSession, job: Job, where: str) -> Sample:
    with closing(Inference(job, time_zone(spark))) as inference:
        run, schema = job.options, schema_of(spark, job, inference)
    try:
        frame = read_files(spark, job, schema)
        ids, time = [named_column(name) for name in run.id], timestamp_column(run, schema)
        if TIME in frame.columns:
            time = named_column(TIME)
        file = FILE if FILE in frame.columns else None
        return sample_of(frame, ids, time, where=where, order=file_order(run), file=file)
    except Exception as error:
        way = "fix it, or take its file out of the sample"
        raise explained(error, job, job.files.paths, way=way) from None


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress]:
    console = Terminal(stderr=True, quiet=quiet)
    if console.is_terminal and not quiet:
        columns = BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with ProgressBar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=1.0)
            yield lambda done, step: bar.update(task, completed=done, description=step)
        return
    last = ""

    def tell(done: float, step: str) -> None:
        nonlocal last
        if step != last:
            last = step
            console.print(f"{done:4.0%} {step}")

    yield tell


def _lines(result: Tuning) -> list[str | Text]:
    width, demand, choice = lines_width(100, 40), result.demand, result.choice
    return [
        *_styled(report.title(demand), "dim", width),
        *_styled(report.verdict(demand, choice), "bold", width),
        "",
        *table(choice, running=demand.running, width=width),
        "",
        *findings_lines(result.findings, width),
        *_styled(result.measured, "dim", width),
    ]


def _styled(text: str, style: str, width: int) -> list[Text]:
    return [Text(line, style=style) for line in wrapped(text, width)]


def table(choice: Choice, *, running: bool, width: int = 100) -> Iterator[Text]:
    """Return a table with a line for each choice. A narrow screen omits some columns.

    `running` says whether a query already runs with the first choice.
    """
    omitted = list[str]()
    for optional in _OPTIONAL:
        if sum(wide + 1 for name, wide, _ in report.COLUMNS if name not in omitted) < width:
            break
        omitted.append(optional)
    names = [name for name, _, _ in report.COLUMNS if name not in omitted]
    head = " ".join(f"{name:>{wide}}" for name, wide, _ in report.COLUMNS if name in names)
    yield Text(f"  {head}", style="dim")
    for candidate in choice.candidates:
        kind = choice.kind(candidate)
        mark = {"recommended": ">", "today": "*"}.get(kind, " ")
        row = zip(report.cells(candidate), report.COLUMNS, strict=True)
        line = " ".join(f"{cell:>{wide}}" for cell, (name, wide, _) in row if name in names)
        style = {"recommended": "bold green", "dominated": "dim"}.get(kind, "")
        yield Text(f"{mark} {line}", style=style)
    now = "as the query has it, or given" if running else "as given, else the defaults"
    legend = f"> recommended  * {now}  dim: another is as good or better  K, M: KiB, MiB"
    yield from _styled(legend, "", width)
    if omitted:
        more = f"A wider terminal, --json and --html show {', '.join(omitted)}."
        yield from _styled(more, "", width)
