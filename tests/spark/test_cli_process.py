"""The command as a process: its output streams, signals and exit codes."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support import class_archive
from tests.support.cli_job import FileDrop
from tests.support.namespaces import read_only
from tests.support.needs import long
from tests.support.processes import dedup, python
from tests.support.waiting import wait_until

#: In this locale Java finds no files with non-ASCII names, unless an option says otherwise.
POSIX = {**os.environ, "LC_ALL": "POSIX"}
_RUN = [sys.executable, "-m", "dedup.cli.main", "run"]


def wait_for_batch(running: subprocess.Popen[str], output: Path, batch: int) -> None:
    deadline = time.monotonic() + 120
    while not (output / f"batch={batch}").exists() and time.monotonic() < deadline:
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)


def commands_of_session(leader: int) -> dict[int, str]:
    """Command lines of all processes of a session."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            session = (process / "stat").read_text().rpartition(")")[2].split()[3]
            if int(session) == leader:
                command = (process / "cmdline").read_text().replace("\0", " ")
                found[int(process.name)] = command
    return found


def java_of_session(leader: int) -> list[int]:
    return [pid for pid, command in commands_of_session(leader).items() if "java" in command]


def end_whole_group(running: subprocess.Popen[str]) -> None:
    """What a service manager does; Spark's Java is gone before the run hears of it."""
    running.send_signal(signal.SIGSTOP)
    os.killpg(running.pid, signal.SIGTERM)
    # Its listeners would wait a minute and a half for the run, which stands still.
    for pid in java_of_session(running.pid):
        os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not java_of_session(running.pid), 120)
    running.send_signal(signal.SIGCONT)


@dataclass(frozen=True)
class Run:
    """A run over eight files, one for each micro-batch."""

    output: Path
    port: int
    command: list[str]

    def interrupt(self, *, whole_group: bool = False) -> None:
        """Start it, interrupt it after two micro-batches, and check what it says."""
        begun = len(list(self.output.glob("batch=*")))
        with subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=POSIX,
        ) as running:
            wait_for_batch(running, self.output, begun + 1)
            commands = commands_of_session(running.pid).values()
            assert any("dedup.spark.daemon" in command for command in commands)
            with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
                assert b"\ndedup_" in answer.read()
            if whole_group:
                end_whole_group(running)
            else:
                running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=120)
        assert running.returncode == 130, err
        body = json.loads(out)
        assert (body["status"], body["exit_code"]) == ("interrupted", 130)
        # Without Java the run may hear of its end first.
        assert whole_group or "is left for the next run" in err
        assert "Traceback" not in err
        assert "error: " not in err
        seen = len(list(self.output.glob("batch=*")))
        assert seen < 8
        told = re.search(r"Of this run's micro-batches, (\d+|none) are", err)
        assert told is not None, err
        # The last one may be seen before Spark has noted it.
        assert seen - begun - int(told[1].replace("none", "0")) in (0, 1)


@pytest.fixture
def run(files: FileDrop, tmp_path: Path) -> Run:
    for number in range(8):
        files.text(f"\u00e9{number:02d}.csv", f"id,x\na,{number}\nk{number},0\n")
    output = tmp_path / "out"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *_RUN,
        str(files.folder),
        *("--id", "id", "--horizon", "1 day", "--output", str(output)),
        *("--files-per-trigger", "1", "--master", "local[2]", "--driver-memory", "512m", "--json"),
        *("--prometheus-port", str(port)),
    ]
    return Run(output, port, command)


def test_an_interrupt_stops_the_run_cleanly(run: Run) -> None:
    run.interrupt()


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_an_interrupted_run_continues_without_loss(run: Run) -> None:
    run.interrupt()
    run.interrupt(whole_group=True)
    done = python(*run.command[1:], env=POSIX)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert body["status"] == "ok"
    assert body["records_in"] == body["unique"] + body["duplicate"]
    lines = [
        line for p in run.output.glob("batch=*/*.csv") for line in p.read_text().split("\n")[1:]
    ]
    ids = sorted(line.split(",")[0] for line in lines if line)
    assert ids == sorted(["a", *(f"k{n}" for n in range(8))])
    # What Spark and its workers print belongs in the log.
    assert "WARN" not in done.stderr
    assert "\x1b" not in done.stderr + done.stdout
    assert (run.output / "_dedup.log").stat().st_size > 0


@dataclass(frozen=True)
class Killed:
    """A run with duplicates and bad records aside, one micro-batch for each of twelve files."""

    source: Path
    folder: Path

    @property
    def command(self) -> list[str]:
        folders = ("output", "duplicates", "bad-records")
        return [
            *_RUN, str(self.source), "--id", "id", "--horizon", "1 day", "--quiet",
            *(f"--{name}={self.folder / name}" for name in folders),
            *("--schema", "id STRING, n INT, x STRING", "--files-per-trigger", "1"),
            *("--master", "local[2]", "--driver-memory", "512m"),
        ]  # fmt: skip

    def kill(self, wait_s: float) -> bool:
        """Start it, kill it after its next micro-batch begins, and return whether it still ran."""
        begun = self.folder / "output/_checkpoint/offsets"
        before = len(list(begun.glob("[0-9]*")))
        with subprocess.Popen(
            self.command, stderr=subprocess.DEVNULL, start_new_session=True
        ) as running:
            wait_until(
                lambda: running.poll() is not None or len(list(begun.glob("[0-9]*"))) > before, 120
            )
            time.sleep(wait_s)
            for pid in commands_of_session(running.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return running.wait() == -signal.SIGKILL

    def published(self) -> dict[str, list[str]]:
        """The lines of each micro-batch and folder."""
        return {
            str(batch.relative_to(self.folder)): sorted(
                line
                for file in batch.rglob("*")
                if file.is_file()
                for line in file.read_text().splitlines()
            )
            for batch in self.folder.glob("*/batch=*")
        }


@pytest.mark.timeout(1200)
@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_a_run_killed_at_random_times_publishes_the_same_rows(
    files: FileDrop, tmp_path: Path, file_format: str
) -> None:
    """An uninterrupted run gives the expected rows."""
    bad = {"csv": 'bad,x,"5"" pipe\nof two lines"\nr,1\n', "json": '{"id":"bad","n":"x"}\n[}\n'}
    for number in range(12):
        rows = [(f"k{number}-{n}", n, f'"quoted" {n}') for n in range(40)]
        rows += [(f"k{number - 1}-{n}", -n, "again") for n in range(20)]
        lines = {
            "csv": [
                "id,n,x",
                *(f'{i},{n},"{x.replace(chr(34), 2 * chr(34))}"' for i, n, x in rows),
            ],
            "json": [json.dumps({"id": i, "n": n, "x": x}) for i, n, x in rows],
        }[file_format]
        files.text(f"{number:02d}.{file_format}", "\n".join(lines) + "\n" + bad[file_format])
    whole = Killed(files.folder, tmp_path / "whole")
    done = python(*whole.command[1:])
    assert done.returncode == 0, done.stderr
    killed, draw = Killed(files.folder, tmp_path / "killed"), random.Random(file_format)
    kills = sum(killed.kill(draw.uniform(0, 2)) for _ in range(8))
    assert kills >= 6
    done = python(*killed.command[1:])
    assert done.returncode == 0, done.stderr
    published = killed.published()
    assert published == whole.published()
    assert len(published) == 3 * 12


def test_workers_start_before_the_query(files: FileDrop, tmp_path: Path) -> None:
    files.text("1.csv", "id\na\n")
    log = tmp_path / "events"
    log.mkdir()
    (tmp_path / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir {log.as_uri()}\n"
        "spark.eventLog.rolling.enabled false\nspark.eventLog.compress false\n"
    )
    command = ["run", str(files.folder), "--id", "id", "--horizon", "1 day", "--quiet"]
    done = dedup(
        *command, "--output", tmp_path / "out", "--master", "local[2]",
        SPARK_CONF_DIR=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [path] = log.iterdir()
    events = map(json.loads, path.read_text().splitlines())
    jobs = [each for each in events if each["Event"] == "SparkListenerJobStart"]
    assert ["sql.streaming.queryId" in each["Properties"] for each in jobs] == [False, True]
    assert [stage["Number of Tasks"] for stage in jobs[0]["Stage Infos"]] == [2]


@pytest.mark.parametrize("more", ["--dry-run", long("--quiet")])
def test_a_run_on_a_read_only_root_uses_tmpdir_for_temporary_files(
    files: FileDrop, tmp_path: Path, more: str
) -> None:
    files.text("a.csv", "id\na\nb\na\n")
    output, env = tmp_path / "w" / "out", {"TMPDIR": f"{tmp_path}/w"}
    done = read_only(
        tmp_path, "dedup", "run", str(files.folder), "--id", "id", "--horizon", "1 day",
        "--output", str(output), "--json", more, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).get("unique") == (2 if more == "--quiet" else None)


@pytest.mark.slow
def test_the_demo_prints_right_figures(tmp_path: Path) -> None:
    command = ["demo", "--events", "50000"]
    done = dedup(*command, "--folder", tmp_path / "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every figure is right." in done.stdout
    assert "WRONG" not in done.stdout
    assert max(len(line.rstrip()) for line in done.stdout.split("\n")) <= 80
    assert "\u2026" not in done.stdout
    again = dedup(*command, "--folder", tmp_path / "demo")
    assert again.returncode == 2
    assert "is not empty" in again.stderr


def test_a_session_silences_pysparks_error_handler_of_the_java_server() -> None:
    """The class of the server has another name in PySpark 4.0."""
    code = (
        "from dedup.cli.session import reading_session\n"
        "with reading_session() as spark:\n"
        "    print(spark.sparkContext._accumulatorServer.handle_error.func.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "_handle_server_error"


@pytest.mark.slow
def test_an_invalid_time_is_reported_without_stack_and_control_characters(
    files: FileDrop, tmp_path: Path
) -> None:
    """PySpark's own logger would write both to the terminal."""
    files.text("1.csv", "id,at\na,soon\x9b2J\u202e\n")
    done = dedup(
        "run", files.folder, "--id", "id", "--timestamp", "at", "--horizon", "1 day",
        "--output", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 1
    assert r"at is not a time. It is line 2: a,soon\x9b2J\u202e. Fix it" in done.stderr
    assert "org.apache.spark" not in done.stderr
    assert not {"\x9b", "\u202e"} & set(done.stderr)


IN_CACHE = {"XDG_CACHE_HOME": str(class_archive.CACHE)}


@pytest.fixture(scope="module")
def archive() -> Path:
    """The archive of the tests, which another run may have made."""
    return Path(class_archive.prepare()["file"])


@pytest.mark.slow
def test_a_run_takes_its_classes_from_the_archive(
    archive: Path, files: FileDrop, tmp_path: Path
) -> None:
    files.text("a.csv", "id\na\nb\na\n")
    loaded = tmp_path / "loaded"
    # The tests name the archive themselves, and silence Java.
    java = f"{class_archive.QUICK_JAVA} -Xlog:class+load:file={loaded}"
    done = dedup("run", files.folder, "--id", "id", "--horizon", "1 day",
                 "--output", tmp_path / "out", SPARK_SUBMIT_OPTS=java, **IN_CACHE)  # fmt: skip
    assert done.returncode == 0, done.stderr
    sources = Counter(line.partition(" source: ")[2] for line in loaded.read_text().splitlines())
    from_jars = sum(n for source, n in sources.items() if "/jars/" in source)
    assert sources["shared objects file (top)"] > max(5_000, 10 * from_jars)


def test_prepare_prints_what_a_users_own_session_needs(archive: Path) -> None:
    done = dedup("prepare", **IN_CACHE)
    assert done.returncode == 0
    assert "--again" in done.stdout
    assert f'spark.driver.extraJavaOptions  "-XX:SharedArchiveFile={archive}"' in done.stdout


def test_java_detects_a_damaged_class_archive(archive: Path, tmp_path: Path) -> None:
    damaged = tmp_path / archive.name
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)

    def said(path: Path) -> str:
        # As use_option of class_archive says it.
        options = [f"-XX:SharedArchiveFile={path}", "-XX:+VerifySharedSpaces", "-Xlog:cds"]
        done = subprocess.run(
            ["java", *options, "-version"], capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    assert "checksum" not in said(archive).lower()
    assert "checksum verification failed" in said(damaged).lower()
