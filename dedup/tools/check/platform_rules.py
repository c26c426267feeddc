"""Rules about a platform: what keeps queries from running there, and what makes them slow."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from dedup.core.version import VERSION
from dedup.errors import ConfigError
from dedup.spark.versions import problem
from dedup.tools.check.findings import (
    Assessment,
    Assessments,
    Finding,
    Level,
    Takes,
    costs,
    findings_of,
    fine,
    unknown,
)

#: Facts of `dedup.tools.check.machine_probe`.
Machine: TypeAlias = Mapping[str, Any]
#: Below this a query's cache hardly fits.
_FREE_BYTES = 2 << 30
_SLOW_MS = 1000
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@]+):\d{1,5}")
_IN_MEMORY = {"tmpfs", "ramfs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Facts about a platform. Each executor has one entry."""

    driver: Machine
    executors: list[Machine]
    #: Spark's error, if a job of the check failed.
    problem: str | None = None
    #: Number of executors, or None if it is unknown or Spark runs in one process.
    expected_executors: int | None = None
    root: str | None = None
    #: Whether the root is a path that every machine of a cluster has to mount.
    is_mount: bool = False
    #: Whether a Python process sees the file of another one, by host. None: not tried.
    sees_files: Mapping[str, bool] | None = None

    @property
    def machines(self) -> list[Machine]:
        return [self.driver, *self.executors]


def check_servers(servers: Sequence[str], option: str) -> None:
    """Raise ConfigError, which does not repeat what may be a secret, for another text."""
    if isinstance(servers, str) or not all(map(_SERVER.fullmatch, servers)):
        raise ConfigError(
            f"{option}: give each server as HOST:PORT, such as kafka-1:9092, without a scheme, a "
            "user or a password."
        )


def judge(platform: Platform) -> list[Finding]:
    """Return the findings of all rules, the worst first."""
    return findings_of((name, rule(platform)) for name, rule in _RULES.items())


def _stops(evidence: str, change: str) -> Assessment:
    return Assessment(Level.STOPS, evidence, change, Takes.OUTSIDE)


def _executors(platform: Platform) -> Assessments:
    if platform.problem is not None:
        return _stops(
            f"A job of the check failed: {platform.problem}",
            "Let PYSPARK_PYTHON name a Python of this program's version on every machine",
        )
    reached, expected = len(platform.executors), platform.expected_executors
    if expected is not None and reached < expected:
        return unknown(
            f"{reached} of {expected} executors ran a task of the check. Nothing is known of the "
            "others.",
            "Check again when no other job runs",
            Takes.OUTSIDE,
        )
    return fine(f"{reached} executor{'s' * (reached != 1)} answered: {_hosts(platform.executors)}.")


def _python(platform: Platform) -> Assessments:
    # Spark itself refuses another series, so that the jobs of the check fail.
    series = platform.driver["python"].rpartition(".")[0]
    return fine(f"Every machine runs Python {series}.") if platform.executors else None


def _libraries(platform: Platform) -> Iterator[Assessment]:
    missing = [
        (name, one)
        for one in platform.machines
        for name, found in one["libraries"].items()
        if found["problem"]
    ]
    for (name, issue), which in _by(missing, lambda x: (x[0], x[1]["libraries"][x[0]]["problem"])):
        yield _stops(
            f"On {_hosts(one for _, one in which)}: {name} cannot be imported ({issue}).",
            f"Install {name} there for {which[0][1]['executable']}",
        )
    complete = [
        one
        for one in platform.machines
        if not any(found["problem"] for found in one["libraries"].values())
    ]
    for (spark, arrow), machines in _by(
        complete, lambda one: (_release(one, "pyspark"), _release(one, "pyarrow"))
    ):
        if (issue := problem(spark, arrow)) is not None:
            because, _, change = issue.rpartition(". ")
            yield _stops(f"On {_hosts(machines)}: {because}.", change)
    several = {
        name: releases
        for name in platform.driver["libraries"]
        if len(releases := {_release(one, name) for one in complete}) > 1
    }
    for name, releases in several.items():
        yield unknown(
            f"The machines have different releases of {name}: {', '.join(sorted(releases))}. No "
            "test covers a mixture.",
            f"Install the same release of {name} everywhere",
            Takes.OUTSIDE,
        )
    if not missing and not several:
        ours = (
            f"{name} {_release(platform.driver, name)}" for name in platform.driver["libraries"]
        )
        yield fine(f"Every machine has {', '.join(ours)}.")


def _package(platform: Platform) -> Assessments:
    others = [one for one in platform.executors if one["package"]["release"] != VERSION]
    if others:
        return [
            _stops(
                f"On {_hosts(which)}: {what}. This program has rolling-dedup {VERSION}.",
                f"pip install rolling-dedup=={VERSION} for {which[0]['executable']} there, or ship "
                "an environment with spark.archives",
            )
            for what, which in _by(others, _package_of)
        ]
    return fine(f"Every machine has rolling-dedup {VERSION}.")


def _package_of(machine: Machine) -> str:
    found = machine["package"]
    if found["release"] is None:
        return f"the package cannot be imported ({found['problem']})"
    return f"rolling-dedup {found['release']}"


def _kernel(platform: Platform) -> Assessments:
    slow = [one for one in platform.machines if one["kernel"] == "numpy"]
    if slow:
        return costs(
            f"On {_hosts(slow)}: numpy computes, because the C kernel is not installed. Results "
            "are the same.",
            "Install a wheel, or install a C compiler and then the package again",
            Takes.OUTSIDE,
        )
    paths = sorted({one["kernel"] for one in platform.machines if one["kernel"]})
    return fine(f"The C kernel runs everywhere ({', '.join(paths)}).") if paths else None


def _local_disk(platform: Platform) -> Iterator[Assessment]:
    where = [(one, folder) for one in platform.executors for folder in one["folders"]]
    for one, folder in where:
        place = f"{folder['path']} on {one['host']}"
        if (issue := folder["write"] or folder.get("rename")) is not None:
            yield _stops(
                f"{place} cannot be used: {issue}.", "Name another folder in spark.local.dir"
            )
            continue
        free = folder["free_bytes"]
        if free is not None and free < _FREE_BYTES:
            yield costs(
                f"{place} has {free >> 20:,} MiB free, for the cache of the catalog and for rows "
                "of a micro-batch.",
                "cache_bytes=, or another folder in spark.local.dir",
                Takes.RESTART,
            )
        if folder["medium"] in _IN_MEMORY:
            yield costs(
                f"{place} is in memory ({folder['medium']}), so cache and rows take memory there.",
                "cache_dir= on a disk, or another folder in spark.local.dir",
                Takes.RESTART,
            )
    media = sorted({folder["medium"] or "unknown" for _, folder in where})
    lacks = sorted({what for _, folder in where for what in ("link", "sync") if folder.get(what)})
    note = f" Without {' and '.join(lacks)}, files are copied or not synced." if lacks else ""
    if where:
        yield fine(f"Executors keep local files on: {', '.join(media)}.{note}")


def _processes(platform: Platform) -> Assessments:
    if platform.problem is not None:
        return None
    if platform.sees_files is None:
        return unknown("Executors lack pandas or pyarrow, so their processes were not compared.")
    apart = sorted(host for host, is_seen in platform.sees_files.items() if not is_seen)
    if apart:
        return costs(
            f"The Python processes of a task have different disks on {', '.join(apart)}. The first "
            "attempt of a task fails, and afterwards rows go through Spark.",
            "spark.task.maxFailures of at least 2",
            Takes.OUTSIDE,
        )
    return fine("The Python processes of a task see each other's files.")


def _catalog(platform: Platform) -> Iterator[Assessment]:
    if platform.root is None:
        return
    tried = [one for one in platform.machines if one.get("root")]
    for issue, machines in _by(tried, lambda one: one["root"].get("problem")):
        if issue is not None:
            yield _stops(
                f"On {_hosts(machines)}: {platform.root} cannot be used. {issue}",
                "Give driver and executors the rights and credentials for this folder",
            )
    for issue, machines in _by(platform.executors, lambda one: one.get("root_problem")):
        if issue is not None:
            yield _stops(
                f"On {_hosts(machines)}: {issue}", "Install the package there and check again"
            )
    blind = [one for one in tried if one["root"].get("sees_driver") is False]
    if blind:
        yield _stops(
            f"On {_hosts(blind)}: {platform.root} does not have what the driver wrote there.",
            "Mount the same folder on every machine, or use an object store (s3://...)",
        )
    slowest: dict[str, float] = {}
    for one in tried:
        for step, ms in one["root"].get("ms", {}).items():
            slowest[step] = max(ms, slowest.get(step, 0.0))
    shown = ", ".join(f"{step} {ms:,.0f} ms" for step, ms in slowest.items())
    if max(slowest.values(), default=0.0) > _SLOW_MS:
        yield costs(
            f"{platform.root} answers slowly: {shown}. Each micro-batch waits for it.",
            "A root in the same region as the cluster",
            Takes.BEGINNING,
        )
    elif slowest and not any(one["root"].get("problem") for one in tried):
        mount = " Queries need shared_local=True." if platform.is_mount else ""
        yield fine(f"{platform.root} works, at most: {shown}.{mount}")
    untried = [
        one for one in platform.executors if not (one.get("root") or one.get("root_problem"))
    ]
    if untried and not platform.driver["root"]["problem"]:
        yield unknown(f"On {_hosts(untried)}: {platform.root} was not tried without the package.")


def _servers(platform: Platform) -> Iterator[Assessment]:
    for server in platform.driver["servers"]:
        yield from _server(platform, server)


def _server(platform: Platform, server: str) -> Iterator[Assessment]:
    unreached = [one for one in platform.machines if one["servers"][server]]
    for issue, machines in _by(unreached, lambda one: one["servers"][server]):
        yield _stops(
            f"On {_hosts(machines)}: {server} cannot be reached ({issue}).",
            f"Let the network of these machines connect to {server}",
        )
    if not unreached:
        yield fine(f"Every machine reaches {server}.")


_RULES: dict[str, Callable[[Platform], Assessments]] = {
    "executors": _executors,
    "python": _python,
    "libraries": _libraries,
    "package": _package,
    "kernel": _kernel,
    "local-disk": _local_disk,
    "processes": _processes,
    "catalog": _catalog,
    "servers": _servers,
}


def _by(items: Iterable[Any], key: Callable[[Any], Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the items in groups of one key, as they come."""
    groups: defaultdict[Any, list[Any]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    yield from groups.items()


def _hosts(machines: Iterable[Machine]) -> str:
    names = list(dict.fromkeys(one["host"] for one in machines))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _release(machine: Machine, library: str) -> str:
    return str(machine["libraries"][library]["release"])
