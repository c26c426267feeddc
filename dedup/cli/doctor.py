"""`dedup doctor`: checks whether a platform can run queries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from dedup.cli.commands import Done
from dedup.cli.failures import OK, UNSAFE
from dedup.cli.findings import WIDTH, findings_lines, summary_line
from dedup.cli.flags import DoctorFlags, pairs
from dedup.cli.printing import cell
from dedup.cli.session import spark_session
from dedup.cli.terminal import lines_width
from dedup.errors import ConfigError
from dedup.spark.machine import local_cores
from dedup.storage.root import Root
from dedup.tools.check.findings import Level
from dedup.tools.check.platform_rules import Machine, Platform, judge

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LIBRARIES = ("pyspark", "pandas", "pyarrow")


def doctor(flags: DoctorFlags) -> Done:
    servers = flags.server or []
    for server in servers:
        if not server.rpartition(":")[2].isdecimal():
            raise ConfigError(f"--server {server} has no port: give it as HOST:PORT.")
    root = None if flags.catalog is None else Root(flags.catalog)
    with _session(flags) as session:
        from dedup.tools.check.platform import examine

        platform = examine(session, root, servers)
    findings = judge(platform)
    stops = any(finding.level is Level.STOPS for finding in findings)
    body = {
        "status": "stops" if stops else "ok",
        "machines": [dict(machine) for machine in platform.machines],
        "findings": [finding.to_json() for finding in findings],
    }
    lines: list[RenderableType] = [_table(platform), ""]
    lines += [*findings_lines(findings, lines_width(WIDTH)), summary_line(findings)]
    return Done(UNSAFE if stops else OK, body, lines)


@contextmanager
def _session(flags: DoctorFlags) -> Iterator[SparkSession]:
    """Yield a session on this machine as other commands have it, or one as a user's program."""
    settings = pairs(flags.conf, "--conf")
    master = flags.master or "local[2]"
    if local_cores(master) is not None:
        with (
            tempfile.TemporaryDirectory(prefix="dedup-log-") as scratch,
            spark_session(
                master=master,
                driver_memory="1g",
                shards=2,
                log=Path(scratch) / "spark.log",
                settings=settings,
            ) as session,
        ):
            yield session
        return
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("dedup doctor").config(map={**settings})
    is_remote = master.startswith("sc://")
    session = (builder.remote(master) if is_remote else builder.master(master)).getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _table(platform: Platform) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "machine", "Python", *_LIBRARIES, "dedup", "free disk"):
        table.add_column(heading)
    table.add_row("driver", *_cells(platform.driver))
    for executor in platform.executors:
        table.add_row("executor", *_cells(executor))
    return table


def _cells(machine: Machine) -> list[str]:
    releases = [machine["libraries"][name]["release"] for name in _LIBRARIES]
    values = [machine["host"], machine["python"], *releases, machine["package"]["release"]]
    disks = (
        f"{(folder['free_bytes'] or 0) / 2**30:,.0f} GiB {folder['medium'] or ''}".rstrip()
        for folder in machine["folders"]
    )
    return [cell(value) for value in (*values, ", ".join(disks))]
