"""`dedup doctor`: checks whether a platform can run queries."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from dedup.cli.commands import Done
from dedup.cli.failures import OK, UNSAFE
from dedup.cli.findings import WIDTH, findings_lines, summary_line
from dedup.cli.flags import DoctorFlags, pairs
from dedup.cli.session import children_print_to, spark_session
from dedup.cli.terminal import lines_width
from dedup.errors import ConfigError, DedupError
from dedup.errors.cause import cause_of
from dedup.spark.machine import local_cores
from dedup.storage.root import Root
from dedup.tools.check.findings import Level
from dedup.tools.check.machine_probe import connect
from dedup.tools.check.platform_rules import Machine, Platform, check_servers, judge
from dedup.values.duration import cell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = re.compile(r"(local\b|yarn$|spark://|k8s://|sc://)")
#: Default port of Spark Connect.
_CONNECT_PORT = 15002
_LIBRARIES = ("pyspark", "pandas", "pyarrow")


def doctor(flags: DoctorFlags) -> Done:
    servers = flags.server or []
    check_servers(servers, "--server")
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
    if _MASTER.match(master) is None:
        raise ConfigError("--master is not a master of Spark, such as spark://host:7077 or yarn.")
    with tempfile.TemporaryDirectory(prefix="dedup-log-") as scratch:
        log = Path(scratch) / "spark.log"
        if local_cores(master) is not None:
            with spark_session(
                master=master, driver_memory="1g", shards=2, log=log, settings=settings
            ) as session:
                yield session
            return
        place = re.split(r"[/;?]", master.partition("://")[2] or master)[0]
        try:
            with children_print_to(log):
                session = _other_session(master, place, settings)
        except Exception as error:
            raise DedupError(f"Spark does not answer at {place}: {cause_of(str(error))}") from None
        try:
            yield session
        finally:
            session.stop()


def _other_session(master: str, place: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of a cluster or of Spark Connect. `place` is the host and port."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if master.startswith("sc://"):
        # The client itself would try for minutes.
        connect(place if ":" in place else f"{place}:{_CONNECT_PORT}")
        return builder.remote(master).getOrCreate()
    return builder.master(master).appName("dedup doctor").config(map={**settings}).getOrCreate()


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
