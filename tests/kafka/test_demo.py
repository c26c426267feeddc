"""The demonstrations in short forms; RELIABILITY.md shows what the one into a topic prints."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import dedup
from tests.databases.mysql_server import need_mysql
from tests.databases.postgres_server import need_postgres
from tests.kafka.demo import targets
from tests.kafka.demo.producers import Load, batches
from tests.kafka.demo.run import judged
from tests.kafka.records import Record
from tests.support.processes import Daemon, members, python
from tests.support.waiting import wait_until

PAGE = Path(dedup.__file__).parent / "RELIABILITY.md"
LOAD = Load(stretches=1, batches=2, producers=1, batch=10, customers=2)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("sink", ["kafka", "postgres", "mysql"])
def test_the_demo_prints_right_figures(broker: str, tmp_path: Path, sink: str) -> None:
    flags = ["--sink", sink, "--servers", broker, "--kills", "1", "--batches", "6"]
    flags += ["--folder", tmp_path]
    if sink == "postgres":
        need_postgres()
    elif sink == "mysql":
        need_mysql()
    done = python("-m", "tests.kafka.demo", *flags, timeout_s=380)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every figure is right." in done.stdout
    assert re.search(r"Killed driver \d+ with all its \d+ processes in micro-batch", done.stderr)
    if sink != "kafka":
        assert "restarts of the server" in names(done.stdout)
        return
    block = PAGE.read_text().partition("<!-- demo-kafka -->\n```\n")[2].partition("```")[0]
    assert "records out" in names(block)
    assert names(block) == names(done.stdout)
    assert block.count("ok") == len(names(block))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for names of sockets, which have about 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="dedup-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("sink", ["kafka", "postgres", "mysql"])
@pytest.mark.timeout(300)
def test_a_demo_that_fails_ends_its_processes(
    broker: str, tmp_path: Path, short_path: Path, sink: str
) -> None:
    """The query cannot start, while producers wait for its next start and servers run."""
    if sink == "postgres":
        need_postgres()
    elif sink == "mysql":
        need_mysql()
    flags = ["--sink", sink, "--servers", broker, "--folder", tmp_path / "query"]
    log = tmp_path / "log"
    demo = Daemon.start(
        [sys.executable, "-m", "tests.kafka.demo", *flags], log,
        os.environ | {"JAVA_HOME": str(tmp_path / "no-java"), "TMPDIR": str(short_path)},
    )  # fmt: skip
    try:
        assert demo.process.wait(240) == 1
        assert "The query ended with code" in log.read_text()
        assert not members(demo.process.pid)
        # Servers have their folders in their command lines.
        wait_until(lambda: not any(f"{short_path}/dedup-demo-".encode() in c for c in commands()))
    finally:
        demo.kill()


def commands() -> Iterator[bytes]:
    """Yield the command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes()


def names(table: str) -> list[str]:
    """What is counted, row by row."""
    return re.findall(r"^ *(?:ok|WRONG) +(\S.*?)  +", table, re.MULTILINE)


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (lambda out: out, set()),
        (lambda out: out[:-1], {"records out", "  lost"}),
        (lambda out: [*out, out[0]], {"records out", "  duplicated"}),
        (lambda out: [*reversed(out)], {"  out of a customer's order"}),
    ],
)
def test_a_wrong_output_is_found(fault, wrong) -> None:  # type: ignore[no-untyped-def]
    [first, second] = batches(LOAD, 0)
    given = records([*first, *second, *second])
    out = records([(r.key, r.value) for r in fault(records([*first, *second]))])
    ids = [targets.Seen(each).ids for each in (given, out)]
    of_topic = targets.judged(LOAD, out, [*out, *records(first, 99)], targets.Seen(out))
    checks = [*judged(LOAD, len(given), *ids), *of_topic]
    watched = [c.name for c in checks].index("seen by the reader meanwhile")
    assert {check.name for check in checks[:watched] if not check.good} == wrong
    # What was wrong in the end, the reader saw as it came.
    assert any(not check.good for check in checks[watched:]) == bool(wrong)


def records(pairs: list[tuple[bytes | None, bytes | None]], offset: int = 0) -> list[Record]:
    return [
        Record(
            topic="t", partition=0, offset=offset + n, key=key, value=value, headers=(),
            timestamp_ms=0,
        )
        for n, (key, value) in enumerate(pairs)
    ]  # fmt: skip
