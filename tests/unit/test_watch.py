"""`dedup watch`: what it shows of a log, in 80 x 24, and its exit codes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dedup.cli import watch as watch_query
from dedup.cli.app import app
from dedup.cli.watch_screen import STATUSES, WIDTH, fit, screen, waiting, worst
from dedup.core.metrics import STAGES, BatchMetrics, filter_fpr
from dedup.core.sequence_metrics import AnyMetrics, SequenceMetrics
from dedup.errors import ConfigError
from dedup.tools.watch.health import WINDOW, Status
from dedup.tools.watch.metrics_log import SUFFIX, MetricsLog
from dedup.tools.watch.watched import Watched
from tests.support.batch_metrics import HOUR_MS, QUERY, RUN, batch, sequence_batch
from tests.support.batch_metrics import watched as watched_of
from tests.support.waiting import readable

STEP_MS = 10_000


def until_now(count: int) -> Iterator[tuple[int, int]]:
    """Numbers and timestamps of micro-batches that end now."""
    now_ms = time.time_ns() // 1_000_000
    return enumerate(range(now_ms - (count - 1) * STEP_MS, now_ms + 1, STEP_MS))


def batches(count: int = WINDOW, *, stuck: bool = False, **fields: Any) -> list[BatchMetrics]:
    made = []
    for n, newest_ms in until_now(count):
        low_ms = newest_ms - (n + 1) * STEP_MS if stuck else newest_ms - 2000
        times = {"newest_ms": newest_ms, "low_watermark_ms": low_ms}
        made.append(batch(n, **times, gc_watermark_ms=low_ms - HOUR_MS, **fields))
    return made


def sequences(count: int = WINDOW, **fields: Any) -> list[SequenceMetrics]:
    made = []
    for n, newest_ms in until_now(count):
        times = {
            "newest_ms": newest_ms, "now_ms": newest_ms + 100, "low_watermark_ms": newest_ms - 2000,
            "expired_before_ms": newest_ms - 2000 - HOUR_MS,
        }  # fmt: skip
        made.append(sequence_batch(n, **{**times, **fields}))
    return made


def watched(made: Sequence[AnyMetrics], *, ended: str | None = None) -> Watched:
    timed = [(one.newest_ms or 0, one) for one in made]
    now_ms = timed[-1][0] + 500 if timed else 1
    return watched_of(timed, now_ms, ended=ended)


def test_conflicts_losses_and_unchecked_records_are_shown_in_full() -> None:
    """No line is cut off at 80 columns."""

    def shown(**fields: Any) -> str:
        return "\n".join(line.plain for line in screen([watched(batches(**fields))]))

    assert "conflicts/s" not in shown()
    assert "expected lost" not in shown()
    lines = shown(conflict=41_700, filter_false_positive=0, filter_unconfirmed=12,
                  expected_lost_millionths=1_500_000)  # fmt: skip
    assert re.search(r"conflicts/s +4,170 +copies whose payload differs$", lines, re.M)
    lost = f"{1.5 * WINDOW:,.1f}"
    assert re.search(rf"expected lost +{lost} +new IDs dropped by false positives$", lines, re.M)
    assert re.search(r"false positives  - ", lines), "no one has looked"
    told = shown(unchecked=1000, filter_false_positive=0, filter_negative=0)
    assert re.search(r"not looked up +1,000 +in the last one, at least once$", told, re.M)


def test_clamped_and_late_records_have_lines_a_verdict_and_an_exit_code(tmp_path: Path) -> None:
    for made in (batches(future=330, late=20), sequences(future=330)):
        lines = screen([watched(made)])
        shown = text(lines)
        assert re.search(r"^future/s +33 +33% have a future timestamp: count as now$", shown, re.M)
        assert "dedup remedies future" in " ".join(shown.split())
        yellow = [line.plain.split("/s")[0] for line in lines if line.style == "yellow"]
        assert yellow[-2:] == (["future", "late"] if made[0].gc_source is None and
                               isinstance(made[0], BatchMetrics) else ["future"])  # fmt: skip
    log(tmp_path / "future", batches(future=330, late=20))
    assert watch(tmp_path / "future", "--once").exit_code == 15
    log(tmp_path / "late", batches(late=20))
    done = watch(tmp_path / "late", "--json")
    assert (done.exit_code, json.loads(done.stdout)["status"]) == (14, "LATE")
    assert "future/s" not in text(screen([watched(batches(future=10))]))


def log(folder: Path, made: Sequence[AnyMetrics]) -> MetricsLog:
    written = MetricsLog(folder)
    for one in made:
        written.batch(one, one.newest_ms or 0)
    return written


def watch(where: Path | str, *options: str) -> Result:
    return CliRunner().invoke(app, ["watch", str(where), *options])


def text(lines: list[Any]) -> str:
    return "\n".join(line.plain for line in lines)


def test_more_live_ids_than_the_limit_are_shown() -> None:
    for most, told in ((0, "buckets"), (20, "buckets"), (19, "more than max_live_ids, 19")):
        lines = text(screen([watched(batches(live_ids=20, max_live_ids=most))])).splitlines()
        (line,) = (line for line in lines if line.startswith("live IDs"))
        assert told in line


def test_the_false_positive_rate_is_that_of_the_window() -> None:
    made = batches(4, filter_negative=90, filter_false_positive=10)
    assert filter_fpr(watched(made).of_ids) == pytest.approx(0.1)
    none = batches(2, filter_negative=0, filter_false_positive=0)
    assert filter_fpr(watched(none).of_ids) is None


def test_everything_fits_on_a_screen_of_80_by_24() -> None:
    sources = tuple((f'["topic",{n}]', 1_700_000_000_000 + n, n == 9) for n in range(10))
    made = batches(
        gc_source='["topic",0]', slowest_sources=sources, state_bytes=3 << 20,
        segment_bytes=5 << 30, sidecar_bytes=200 << 20, live_ids=123_456_789_012,
        gc_shard=17, fullest_shard=199, fullest_shard_ids=50_000_000_000, segments=1234,
    )  # fmt: skip
    lines = screen([watched(made)])
    assert len(lines) <= 24
    assert max(len(line.plain) for line in lines) <= WIDTH
    shown = text(lines)
    for what in (
        " OK  orders: the GC watermark keeps up", "newest timestamp", "00:00:00 behind the clock",
        "low watermark", '00:00:02 behind: ["topic",0] in shard 17',
        "01:00:00 behind by horizon and lateness", "target 1.00%", "123,456,789,012", "5.2 GiB",
        "00:15:00", "01:00:00", "slowest source partitions", '["topic",3]',
    ):  # fmt: skip
        assert what in shown, what
    long = text(screen([watched(batches(gc_source="p" * 200, gc_shard=17))])).splitlines()
    (line,) = (line for line in long if line.startswith("low watermark"))
    assert (line[-15:], len(line)) == ("ppp… in shard 17"[-15:], WIDTH)
    assert "00:00:02 behind, in shard 17\n" in text(screen([watched(batches(gc_shard=17))]))
    held = [replace(one, gc_watermark_ms=(one.gc_watermark_ms or 0) - 60_000) for one in made]
    assert " 00:01:00 more than horizon and lateness\n" in text(screen([watched(held)]))
    taller = text(screen([watched(made)], height=40))
    assert '["topic",9]  idle, holds nothing back' in taller
    assert "…" not in taller


def test_the_screen_shows_how_much_filters_in_spark_state_cover() -> None:
    made = batches(filter_state_bytes=3 << 20, sidecar_bytes=12 << 20, filter_sidecar=712)
    shown = text(screen([watched(made)], height=40))
    assert re.search(
        r"^filters in state +3.0 MiB +of all; alone they clear 20% of new IDs$", shown, re.M
    )


def test_the_screen_shows_duration_and_interval_of_micro_batches() -> None:
    made = batches(batch_ms=800, stage_us={**dict.fromkeys(STAGES, 0), "pack": 310_000, "judge": 4})
    shown = text(screen([watched(made)]))
    assert "micro-batch      9 in 0.80 s          usually 0.80 s, started every 10.0 s\n" in shown
    assert "time of tasks    0.31 s in all        pack 0.31 s, judge 0.00 s, read 0.00 s\n" in shown
    busy = text(screen([watched(batches(batch_ms=STEP_MS))]))
    assert "usually 10.0 s, one after another\n" in busy
    assert "9 in -  " in text(screen([watched(batches(batch_ms=0))]))
    assert "0 in 0.80 s          usually 0.80 s\n" in text(screen([watched(batches(1))]))


def test_numbered_records_show_verdicts_and_producers() -> None:
    rare = {"fenced": 40, "unknown": 30, "unnumbered": 20, "untimed": 10}
    made = sequences(producers=123_456_789_012, fullest_shard_producers=85_000, **rare)
    lines = screen([watched(made)])
    assert len(lines) <= 24
    assert max(len(line.plain) for line in lines) <= WIDTH
    shown = text(lines)
    assert shown.startswith(" OK  orders: the GC watermark keeps up\n")
    for what in (
        r"low watermark .* 00:00:02 behind$", r"GC watermark .* 01:00:00 behind by expire_after$",
        r"micro-batch +9 in 0\.80 s +usually 0\.80 s, started every 10\.0 s$",
        r"time of tasks .* 0\.00 s, read 0\.00 s, judge 0\.00 s$",
        r"records/s +100 +accept 88  duplicate 10  gap 2\.0$",
        r"fenced/s +4\.0 +a newer epoch of their producer was seen$",
        r"unknown/s +3\.0 +cannot tell whether they are new$",
        r"unnumbered/s +2\.0 +no producer, epoch or sequence$", r"untimed/s +1\.0 +no timestamp$",
        r"missing +300 +in the last 10; 100 came later$",
        r"producers +123,456,789,012 +50 new, 20 expired since$",
        r"fullest shard +85,000 +85\.0% of max_producers, 100,000$",
        r"bytes +140\.6 KiB +all in Spark state, 0 B a producer$",
    ):  # fmt: skip
        assert re.search(what, shown, re.M), what
    (fullest,) = (line for line in lines if line.plain.startswith("fullest"))
    assert fullest.style == "yellow"
    well = text(screen([watched(sequences(1))]))
    assert not re.search("fenced|unknown|unnumbered|untimed|horizon|IDs", well)
    assert re.search(r"missing +30 +in the last one; 10 came later$", well, re.M)
    assert re.search(r"bytes .*, 60 B a producer$", well, re.M)


def test_numbered_records_without_a_timestamp_show_no_watermarks() -> None:
    shown = text(screen([watched(sequences(expired_before_ms=None))]))
    assert shown.startswith(" OK  orders: it keeps up; producers expire by query time\n")
    assert re.search(r"last micro-batch .* 00:00:00 behind the clock$", shown, re.M)
    assert re.search(r"expire_after +01:00:00 +of query time, without downtime$", shown, re.M)
    assert "watermark" not in shown
    # By event time, before the first timestamp, it is not that.
    first = text(screen([watched(sequences(expired_before_ms=None, newest_ms=None))]))
    assert re.search(r"GC watermark +- ", first)


def test_the_history_of_numbered_records_shows_their_figures() -> None:
    made = [replace(one, missing=n) for n, one in enumerate(sequences(60))]
    lines = text(screen([watched(made)], width=100, height=50)).splitlines()
    assert max(map(len, lines)) <= 100
    (missing,) = (line for line in lines if line.startswith("missing ") and "to" in line)
    assert missing.endswith("█  7 to 59")
    (producers,) = (line for line in lines if re.match("producers .*█", line))
    assert producers.endswith("  2,400")
    head = next(n for n, line in enumerate(lines) if "number" in line)
    assert lines[head].split() == [
        "number", "done", "(UTC)", "took", "every", "records", "duplicate", "missing", "producers",
        "pack", "ms", "read", "ms",
    ]  # fmt: skip
    assert lines[head + 1].split()[-4:] == ["59", "2,400", "0", "0"]
    assert not any(line.startswith(("live IDs", "GC lag")) for line in lines)


def test_json_output_has_totals_of_numbered_records(tmp_path: Path) -> None:
    log(tmp_path, sequences(fenced=40))
    told = watch(tmp_path, "--once", "--json")
    assert told.exit_code == 0, told.output
    (one,) = json.loads(told.output)["queries"]
    assert one["totals"]["fenced"] == 400
    assert one["totals"]["producers_new"] == 50
    assert one["per_second"]["fenced"] == pytest.approx(4)
    assert one["last"] == json.loads((tmp_path / (QUERY + SUFFIX)).read_text().splitlines()[-1])[
        "sequences"
    ]  # fmt: skip
    assert set(one["stage_ms"]) == {"pack", "read", "judge", "write"}
    assert not one.keys() & {"filter_fpr", "expected_lost", "expiry"}
    assert watch(tmp_path, "--once").output.startswith(" OK  pumps: the GC watermark keeps up\n")


def test_problems_of_numbered_records_are_reported() -> None:
    stuck = sequences(low_watermark_ms=5, expired_before_ms=5)
    assert watched(stuck).health.status is Status.STALLED
    apart = watched(sequences(epochs_apart=1)).health
    assert (apart.status, apart.reason.split(": ")[1]) == (
        Status.REWOUND, "dedup remedies damaged-state",
    )  # fmt: skip


def test_a_large_terminal_shows_earlier_micro_batches() -> None:
    made = [
        replace(one, batch_ms=100 * n, stage_us={**one.stage_us, "pack": 7000 * n},
                live_ids=10**8 + n)
        for n, one in enumerate(batches(60), 1)
    ]  # fmt: skip
    lines = text(screen([watched(made)], width=100, height=50)).splitlines()
    assert len(lines) == 50
    assert max(map(len, lines)) <= 100
    begin = lines.index("the last 60 micro-batches")
    # The newest stands to the right, and no curve is longer than what is said of its ends.
    (duration,) = (line for line in lines if line.startswith("duration "))
    assert duration.endswith("█  0.80 s to 6.00 s"), "the last 53 have room"
    assert duration.split()[1][0] == "▂"
    live = [line for line in lines if line.startswith("live IDs     ")][-1]
    assert live.endswith("█  100,000,008 to 100,000,060")
    head = next(n for n, line in enumerate(lines) if "number" in line)
    assert begin < head
    assert lines[head].split() == [
        "number", "done", "(UTC)", "took", "every", "records", "duplicate", "late", "GC", "lag",
        "pack", "ms", "read", "ms",
    ]  # fmt: skip
    rows = [line.split() for line in lines[head + 1 :]]
    assert [int(row[0]) for row in rows] == list(range(59, 59 - len(rows), -1))
    assert rows[0][2:5] == ["6.00", "s", "9.90"]
    assert rows[0][-2:] == ["420", "0"], "ms of tasks in a stage"
    # Nothing of that on a screen without room, nor where it is not wanted.
    for kept in (screen([watched(made)]), screen([watched(made)], height=1000, past=False)):
        assert "duration" not in text(kept)
    narrow = text(screen([watched(made)], width=60, height=50)).splitlines()
    assert max(map(len, narrow)) <= 60
    assert "number" not in narrow


def test_lines_of_the_log_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    log(tmp_path, batches())
    assert "cannot be read" not in watch(tmp_path, "--once").output
    with open(tmp_path / f"{QUERY}.metrics.jsonl", "a") as file:
        file.write("boom\nboom\n")
    shown = watch(tmp_path, "--once")
    assert shown.exit_code == 0
    assert shown.output.startswith("lines of the metrics log that cannot be read: 2\n OK  orders")
    told = json.loads(watch(tmp_path, "--once", "--json").output)
    assert told["queries"][0]["unreadable"] == 2


def test_the_forecast_has_a_bar_for_every_quarter_of_the_horizon() -> None:
    expiring = ((0, 0), (0, 0), (40, 1024), (0, 0), (10, 0), (10, 0), (20, 1), (20, 1))
    shown = text(screen([watched(batches(expiring=expiring))])).splitlines()
    begin = next(n for n, line in enumerate(shown) if "expires when" in line)
    bars = [line.count("#") for line in shown[begin + 1 : begin + 5]]
    assert bars == [0, 10, 5, 10]
    assert "40 IDs    1.0 KiB" in shown[begin + 2]


def test_the_worst_query_is_shown_whole_and_the_others_by_a_line() -> None:
    well, stalled = watched(batches()), watched(batches(stuck=True))
    stalled = replace(stalled, name="payments")
    lines = text(screen([well, stalled])).splitlines()
    assert lines[0].startswith(" STALLED  payments")
    assert lines[-1].startswith(" OK  orders")
    assert worst([well, stalled]) is stalled
    assert list(STATUSES) == list(Status)


def test_the_worst_of_many_queries_come_first_and_the_rest_are_counted() -> None:
    well = [replace(watched(batches()), name=f"well-{n}") for n in range(20)]
    stalled = [replace(watched(batches(stuck=True)), name=f"stalled-{n}") for n in range(2)]
    lines = text(screen([*well, *stalled])).splitlines()
    assert len(lines) <= 24
    assert lines[0].startswith(" STALLED  stalled-0")
    assert any(line.startswith(" STALLED  stalled-1") for line in lines[1:])
    assert lines[-1].startswith("... and ")
    assert lines[-1].endswith(" more, 0 of them not OK")
    everything = text(screen([*well, *stalled], height=1000))
    assert everything.count(" OK  well-") == 20


def test_the_end_of_a_long_reason_is_not_cut() -> None:
    made = batches()
    made[3] = replace(made[3], epochs_apart=1)
    shown = text(screen([replace(watched(made), name="a long\nname")]))
    assert shown.startswith(" REWOUND  a long name: ")
    assert " ".join(shown.split()).count("dedup remedies damaged-state") == 1


def test_a_query_without_micro_batches_shows_only_a_verdict() -> None:
    assert text(screen([watched([])])).startswith(" STOPPED  orders: no micro-batch")


@pytest.mark.parametrize(
    ("make", "ended", "code", "status"),
    [
        (batches, None, 0, "OK"),
        (lambda: [replace(one, gc_watermark_ms=(one.gc_watermark_ms or 0) - 5000 * n)
                  for n, one in enumerate(batches())], None, 10, "LAGGING"),
        (lambda: batches(stuck=True), None, 11, "STALLED"),
        (batches, "boom", 12, "STOPPED"),
        (lambda: [*batches(6), *batches(6, run_id="another")[3:]], None, 13, "REWOUND"),
    ],
)  # fmt: skip
def test_the_exit_code_follows_the_verdict(
    tmp_path: Path,
    make: Callable[[], list[BatchMetrics]],
    ended: str | None,
    code: int,
    status: str,
) -> None:
    made = make()
    written = log(tmp_path, made)
    if ended:
        written.event("ended", QUERY, RUN, time.time_ns() // 1_000_000, ended)
    told = watch(tmp_path, "--once", "--json")
    assert told.exit_code == code, told.output
    body = json.loads(told.output)
    assert (body["status"], body["exit_code"]) == (status, code)
    assert body["queries"][0]["last"]["batch_id"] == made[-1].batch_id
    shown = watch(tmp_path, "--once")
    assert shown.exit_code == code
    assert shown.output.startswith(f" {status}  orders")


def test_one_of_several_queries_can_be_selected(tmp_path: Path) -> None:
    log(tmp_path, batches())
    log(tmp_path, batches(query_id="other", query_name="payments", stuck=True))
    everything = watch(tmp_path, "--once")
    assert everything.exit_code == 11
    one = watch(tmp_path, "--once", "--query", "orders")
    assert (one.exit_code, "payments" in one.output) == (0, False)


def test_a_folder_without_a_query_is_a_usage_error(tmp_path: Path) -> None:
    told = watch(tmp_path, "--once")
    assert told.exit_code == 2
    assert "not show any query yet" in told.output
    assert "If it failed before that, see the driver's log." in told.output
    told = watch(tmp_path / "nowhere", "--once")
    assert told.exit_code == 2
    assert "not a folder of metrics logs" in told.output


def test_a_run_that_begins_after_watch_is_found(tmp_path: Path) -> None:
    output = tmp_path / "out"
    look = watch_query.looker(str(output), None)
    with pytest.raises(ConfigError, match="not a folder of metrics logs"):
        look()
    output.mkdir()
    with pytest.raises(ConfigError, match="not show any query yet"):
        look()
    (output / "_dedup.json").touch()
    log(output / "_metrics", batches())
    assert len(look()[0]) == 1


class Times:
    """A request to stop that comes after so many looks."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def wait(self, timeout: float) -> bool:
        self.left -= 1
        return not self.left


def test_watch_waits_for_a_source_that_is_missing_for_a_while(
    capsys: pytest.CaptureFixture[str],
) -> None:
    well = [watched(batches())]
    looks = [ConfigError("nothing yet"), (well, None), (well, "no answer"), (well, "no answer"),
             (well, None), ConfigError("gone")]  # fmt: skip

    def look() -> tuple[list[Watched], str | None]:
        found = looks.pop(0)
        if isinstance(found, ConfigError):
            raise found
        return found

    watch_query.follow(look, Times(len(looks)), every_s=0, where="")  # type: ignore[arg-type]
    told = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    verdict = "orders OK: the GC watermark keeps up"
    # The verdict comes once more after the fault, on the same line.
    assert told == [
        "waiting: nothing yet", verdict, "no answer", verdict, verdict, "waiting: gone",
    ]  # fmt: skip


def test_the_screen_says_why_it_is_out_of_date() -> None:
    long = "no answer from http://somewhere:9464/metrics (refused): what follows is what it said"
    lines = text(watch_query._lines(lambda: ([watched(batches())], long), 80, 24)).splitlines()
    assert " ".join(" ".join(lines[:2]).split()) == long
    assert lines[2].startswith(" OK  orders")


class Watching:
    """The command in its own process, and what it has written so far."""

    def __init__(
        self,
        where: Path | str,
        *more: str,
        terminal: bool = True,
        keys: bool = True,
        term: str = "xterm",
        size: tuple[int, int] = (24, 80),
    ) -> None:
        command = [sys.executable, "-m", "dedup.cli.main", "watch", str(where), *more]
        self.output = b""
        self.ours, self.theirs = pty.openpty() if terminal else os.pipe()
        if terminal:
            fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
            self.before = termios.tcgetattr(self.theirs)
        foreground = terminal and keys
        if foreground:
            # In the foreground of a session, as from a shell.
            command = [sys.executable, "-c", FOREGROUND, *command]
        # The size of this terminal counts, not of the terminal that runs the tests.
        own = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command, stdin=self.theirs if foreground else subprocess.DEVNULL, stdout=self.theirs,
            stderr=None if terminal else subprocess.PIPE, start_new_session=foreground,
            env={**own, "TERM": term},
        )  # fmt: skip
        if not terminal:
            self.close_theirs()

    def close_theirs(self) -> None:
        """Close the process's end once: soon after, its number may be another thread's."""
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1

    def until(self, text: bytes) -> None:
        """Read until that is written."""
        while text not in self.output:
            assert readable(self.ours, 60), self.output
            self.output += os.read(self.ours, 65536)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, timeout: float = 30) -> int:
        """Return the exit code, when all is read."""
        code = self.process.wait(timeout)
        self.close_theirs()
        # A terminal's end is an error, a pipe's is nothing.
        with suppress(OSError):
            while more := os.read(self.ours, 65536):
                self.output += more
        os.close(self.ours)
        return code


def follow(folder: Path, *, terminal: bool) -> tuple[bytes, int]:
    """What the live command writes within a second or so, and its exit code after Ctrl-C.

    It begins before there is a log, and nothing can be typed, as under a service manager.
    """
    live = Watching(folder, "--every", "0.1", terminal=terminal, keys=False)
    live.until(b" WAITING " if terminal else b" waiting: ")
    log(folder.with_name("made"), batches())
    folder.with_name("made").rename(folder)
    live.until(b"keeps up")
    log(folder, batches(stuck=True, run_id="another"))
    live.until(b"STALLED")
    live.interrupt()
    code = live.end()
    return live.output, code


def test_a_terminal_gets_a_screen_that_renews_itself(tmp_path: Path) -> None:
    told, code = follow(tmp_path / "metrics", terminal=True)
    assert code == 0
    assert b" WAITING " in told
    assert told.count(b"newest timestamp") >= 2
    # The alternate screen is entered and left, so the shell's own text is there again.
    assert told.index(b"\x1b[?1049h") < told.rindex(b"\x1b[?1049l")
    frames = told.replace(b"\x1b[H", b"\n")
    lines = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", frames).splitlines()
    assert max(len(line.decode()) for line in lines) <= WIDTH


def test_a_pipe_gets_a_line_for_every_new_verdict(tmp_path: Path) -> None:
    told, code = follow(tmp_path / "metrics", terminal=False)
    assert code == 0
    waits, first, *_, last = told.decode().splitlines()
    assert " waiting: " in waits
    assert first.endswith("orders OK: the GC watermark keeps up")
    assert " orders STALLED: " in last
    assert len(told.splitlines()) <= 4, "while it is written, it may look rewound"


def test_a_query_that_was_replaced_under_its_name_is_left_out(tmp_path: Path) -> None:
    made = batches()
    long_ago = [replace(one, query_id="old") for one in made]
    written = MetricsLog(tmp_path)
    for n, one in enumerate(long_ago):
        written.batch(one, 1000 * n)
    log(tmp_path, made)
    # The old one was silent before.
    for asked, found in (((), QUERY), (("--query", "old"), "old"), (("--query", "orders"), QUERY)):
        told = json.loads(watch(tmp_path, "--json", *asked).output)
        assert [one["query_id"] for one in told["queries"]] == [found]


@pytest.mark.parametrize("name", ["orders", None])
def test_only_ended_queries_of_a_shared_name_are_left_out(tmp_path: Path, name: str | None) -> None:
    both = MetricsLog(tmp_path)
    for one in batches():
        for query_id in ("a", "b"):
            both.batch(replace(one, query_id=query_id, query_name=name), one.newest_ms or 0)
    look = watch_query.looker(str(tmp_path), None)
    assert [one.query_id for one in look()[0]] == ["a", "b"]
    both.event("ended", "a", RUN, batches()[0].newest_ms or 0, "boom")
    assert [one.query_id for one in look()[0]] == (["b"] if name else ["a", "b"])


def test_an_unreadable_file_is_reported_beside_the_other_queries(tmp_path: Path) -> None:
    log(tmp_path, batches())
    (tmp_path / f"x{SUFFIX}").mkdir()
    shown = watch(tmp_path, "--once")
    assert shown.exit_code == 0
    # The folder's name may be as long as a line.
    assert f"x{SUFFIX}cannotberead(Isadirectory)" in "".join(shown.output.split())
    assert " OK  orders" in shown.output
    told = watch(tmp_path, "--json")
    assert "cannot be read" in told.stderr
    assert json.loads(told.stdout)["status"] == "OK"


@pytest.mark.parametrize("every", ["inf", "nan", "1e12", "0"])
def test_intervals_outside_the_limits_are_rejected(tmp_path: Path, every: str) -> None:
    log(tmp_path, batches())
    assert watch(tmp_path, "--every", every).exit_code == 2


def test_a_url_is_recognised_in_any_case_and_its_password_is_not_shown() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"HTTP://127.0.0.1:{deaf.getsockname()[1]}"
        shown = text(watch_query._lines(watch_query.looker(url, None), 80, 24))
        assert shown.startswith(f" WAITING  {url}/queries.json serves no metrics of dedup")
        once = watch(url, "--once")
        assert (once.exit_code, "serves no metrics of dedup" in once.output) == (2, True)
    told = watch("http://me:secret@127.0.0.1:1", "--once")
    assert told.exit_code == 2
    assert "the URL contains a user or a password" in told.output
    assert "secret" not in told.output


def test_a_small_terminal_shows_how_many_lines_are_missing() -> None:
    sources = tuple((f'["topic",{n}]', 1_700_000_000_000 + n, False) for n in range(10))
    one = watched(batches(stuck=True, slowest_sources=sources))
    for width, height in ((60, 15), (40, 10), (79, 24), (80, 23)):
        made = screen([one, one], width=width, height=height)
        lines = text(fit(made, width, height)).splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        if len(made) > height:
            assert lines[-1].startswith(f"{len(made) - height + 1} more lines: make the terminal")
    assert "…" in text(screen([one], width=60))
    reason = " ".join(text(screen([one], width=40)).split("newest timestamp")[0].split())
    assert one.health.reason in reason, "the verdict is wrapped, not cut"
    whole = screen([one])
    assert fit(whole, 80, 24) == whole
    assert max(len(line.plain) for line in waiting("x " * 80, width=40)) <= 40


def test_the_live_screen_fits_its_terminal() -> None:
    def look() -> tuple[list[Watched], str | None]:
        return [watched(batches())], None

    made = watch_query._lines(look, 60, 11)
    lines = text(watch_query._with_help(made, 60, 12, "q leaves")).splitlines()
    assert (len(lines), max(map(len, lines))) == (12, 60)
    assert "more lines: make the terminal larger" in lines[-2]
    assert lines[-1] == "q leaves"
    # It is the last line.
    lines = text(watch_query._with_help(made, 80, 30, "q leaves")).split("\n")
    assert (len(lines), lines[-2:]) == (30, ["", "q leaves"])


def test_a_dumb_terminal_gets_the_lines_of_a_pipe(tmp_path: Path) -> None:
    log(tmp_path, batches())
    live = Watching(tmp_path, term="dumb", keys=False)
    live.until(b"keeps up")
    live.interrupt()
    assert live.end() == 0
    assert b" orders OK: the GC watermark keeps up" in live.output
    assert b"\x1b" not in live.output


@pytest.mark.parametrize("key", [b"q", b"Q"])
def test_q_ends_watch_and_restores_the_terminal(tmp_path: Path, key: bytes) -> None:
    log(tmp_path, batches())
    live = Watching(tmp_path, "--every", "60", size=(50, 160))
    live.until(b"keeps up")
    assert termios.tcgetattr(live.theirs) != live.before, "keys come one by one"
    os.write(live.ours, b"x" + key)
    assert live.process.wait(30) == 0
    assert termios.tcgetattr(live.theirs) == live.before
    live.end()
    assert b"q leaves, as Ctrl-C does" in live.output
    assert b"the last 10 micro-batches" in live.output
    assert live.output.rindex(b"\x1b[?1049l") > live.output.rindex(b"\x1b[?1049h")


#: Takes stdin for its terminal and becomes the command.
FOREGROUND = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_second_interrupt_restores_the_terminal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        where = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        live = Watching(where)
        live.until(b"WAITING")
        assert f"for {where}".encode() in live.output, "before it has answered"
        for _ in range(2):
            live.interrupt()
            time.sleep(0.3)
        # One look lasts 5 s: it ends before that.
        assert live.end(4) == 130
    assert live.output.rindex(b"\x1b[?1049l") > live.output.rindex(b"\x1b[?1049h")
    assert live.output.rindex(b"\x1b[?25h") > live.output.rindex(b"\x1b[?25l")


@pytest.mark.parametrize(("form", "code"), [("--once", 11), ("--json", 11), ("--every=1", 0)])
def test_a_pipe_that_is_closed_early_is_no_error(tmp_path: Path, form: str, code: int) -> None:
    log(tmp_path, batches(stuck=True))
    live = Watching(tmp_path, form, terminal=False)
    os.close(live.ours)
    _, errors = live.process.communicate(timeout=30)
    assert (live.process.returncode, errors) == (code, b"")
