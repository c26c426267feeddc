"""`dedup.testing`: its oracle, its small query, and faults, which strike once where they say."""

from __future__ import annotations

import ast
import errno
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import dedup
from dedup.errors.faults import point
from dedup.testing import Oracle, faults, small_query
from tests.support.processes import ROOT
from tests.support.waiting import wait_until

#: A sink's own name at the beginning of a point.
_ROOM = re.compile(r"\{(?:self|slot)\.room\}")
_VISIT = "import sys; from dedup.errors.faults import point; point(*sys.argv[1:]); print('went on')"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("dedup.errors.faults._folder", str(tmp_path))
    return tmp_path


def test_every_point_is_in_the_code_and_listed() -> None:
    # Sinks share the driver's points, and those with slots more, each under its own name.
    slots = ("kafka", "kit")
    rooms = {"driver": (*slots, "files", "lakehouse"), "manifest": (*slots, "stable")}
    named = {
        _ROOM.sub(room, name)
        for path in Path(dedup.__file__).parent.rglob("*.py")
        for name in re.findall(r'faults\.point\(\s*f?"([^"]+)"', path.read_text())
        for room in (rooms.get(name.split(".")[2], slots) if _ROOM.match(name) else [""])
    }
    assert named == set(faults.POINTS)


#: Part of the name of a step, or of a whole family of steps such as ``kit.stage.``.
_NAME = re.compile(r"[a-z_]*(?:\.[a-z_]+)+\.?")


def test_every_step_that_a_test_demo_or_benchmark_names_exists() -> None:
    beginnings = {tuple(name.split(".")[:2]) for name in faults.POINTS}
    endings = {name.rpartition(".")[2] for name in faults.POINTS}
    named = set()
    for path in (each for room in ("tests", "benchmarks") for each in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and _NAME.fullmatch(text):
                *before, ending = text.split(".")
                if tuple(text.split(".")[:2]) in beginnings or (
                    before != [""] and ending in endings
                ):
                    named.add(text)
    known = "".join(f" {name}." for name in faults.POINTS)
    assert {name for name in named if f" {name.rstrip('.')}." not in known} == set()
    assert {"kit.marker.after", "kit.stage.", "files.laid.out"} <= named


@pytest.mark.parametrize("name", ["kit.marker", "nowhere", ""])
def test_a_step_that_does_not_exist_cannot_be_armed_or_visited(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="unknown"):
        faults.arm(folder, name, "kill")
    with pytest.raises(KeyError):
        point(name)


def test_a_process_loads_tools_of_tests_only_for_faults_and_never_pytest(tmp_path: Path) -> None:
    program = (
        "import sys; from dedup.errors.faults import point; point('group.begin'); "
        "print(*(name in sys.modules for name in ('dedup.testing', 'pytest')))"
    )
    for folder, loaded in ((None, "False False"), (tmp_path, "True False")):
        environment = {k: v for k, v in os.environ.items() if k != faults.VARIABLE}
        environment |= {faults.VARIABLE: str(folder)} if folder else {}
        command = [sys.executable, "-c", program]
        output = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert output.stdout.strip() == loaded


def test_without_a_fault_folder_no_fault_strikes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.arm(tmp_path, "group.begin", "raise")
    monkeypatch.setattr("dedup.errors.faults._folder", None)
    point("group.begin")
    assert faults.fired(tmp_path) == []


def test_a_fault_strikes_once_after_the_skipped_visits(folder: Path) -> None:
    faults.arm(folder, "group.begin", "skip", 0)
    faults.arm(folder, "group.begin", "raise", 1)
    point("group.begin")
    point("group.read")
    with pytest.raises(faults.FaultInjected, match=r"group\.begin"):
        point("group.begin")
    point("group.begin")
    assert faults.fired(folder) == [("group.begin", "raise", os.getpid())]


@pytest.mark.parametrize(("kind", "number"), [("enospc", errno.ENOSPC), ("eacces", errno.EACCES)])
def test_a_fault_raises_an_error_of_the_system(folder: Path, kind: str, number: int) -> None:
    faults.arm(folder, "publish.synced", kind)
    with pytest.raises(OSError, match="made to be") as raised:
        point("publish.synced")
    assert raised.value.errno == number


def test_a_corrupting_fault_changes_one_byte_of_the_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    faults.arm(folder, "segment.write.after", "corrupt")
    point("segment.write.after", path)
    wrong = [i for i, byte in enumerate(path.read_bytes()) if byte != i]
    assert wrong == [50]
    faults.arm(folder, "group.begin", "corrupt")
    with pytest.raises(ValueError, match="no file to damage"):
        point("group.begin")


@pytest.mark.parametrize(("name", "kind"), [("nowhere", "kill"), ("group.begin", "sing")])
def test_an_unknown_fault_cannot_be_armed(tmp_path: Path, name: str, kind: str) -> None:
    with pytest.raises(ValueError, match="unknown fault"):
        faults.arm(tmp_path, name, kind)


def started(folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {faults.VARIABLE: str(folder)}
    command = [sys.executable, "-c", _VISIT, "group.end"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)


def test_a_process_is_killed(tmp_path: Path) -> None:
    faults.arm(tmp_path, "group.end", "kill")
    first = started(tmp_path)
    assert first.wait(60) == -signal.SIGKILL
    assert faults.fired(tmp_path) == [("group.end", "kill", first.pid)]
    assert started(tmp_path).communicate(timeout=60)[0] == b"went on\n"


def test_a_process_outlives_a_hangup_until_it_is_released(tmp_path: Path) -> None:
    faults.arm(tmp_path, "group.end", "outlive")
    process = started(tmp_path)
    assert wait_until(lambda: faults.fired(tmp_path), 60)
    status = Path(f"/proc/{process.pid}/status")
    assert wait_until(
        lambda: int(re.findall(r"SigIgn:\s+(\w+)", status.read_text())[0], 16) & 1, 60
    )
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    faults.let_go(tmp_path, process.pid)
    assert process.communicate(timeout=60)[0] == b"went on\n"


def test_a_process_stands_still_until_it_is_continued(tmp_path: Path) -> None:
    faults.arm(tmp_path, "group.end", "freeze")
    process = started(tmp_path)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    assert faults.fired(tmp_path) == [("group.end", "freeze", process.pid)]
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=60)[0] == b"went on\n"


# --- the oracle


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("emitted", "complaint"),
    [
        (["a", "b", "a"], ""),
        (["b", "a"], r"1 lost: 'a' \(1 came out, 2 should\)"),
        (["a", "b", "a", "a"], r"1 too many: 'a' \(3 came out, 2 should\)"),
        (["a", "a", "a", "c"], r"1 lost: 'b' .*; 2 too many: 'a' .*, 'c' \(1 .*, 0 should\)"),
    ],
)
def test_the_oracle_names_lost_and_surplus_records(emitted: list[str], complaint: str) -> None:
    batches = [[("a", 0), ("b", 5), ("a", 9)], [("a", HOUR_MS + 1), ("a", HOUR_MS + 2)]]
    oracle = Oracle("1 hour")
    if not complaint:
        oracle.check(batches, emitted)
        return
    with pytest.raises(AssertionError, match=f"^{complaint}$"):
        oracle.check(batches, emitted)


def test_records_of_another_micro_batch_are_judged_at_the_late_watermark() -> None:
    oracle = Oracle(timedelta(hours=1), lateness="1 minute")
    first = oracle.verdicts([("a", 0), ("b", 2 * HOUR_MS)])
    assert first == {("a", 0, True): 1, ("b", 2 * HOUR_MS, True): 1}
    late_ms = 2 * HOUR_MS - 60_000
    assert oracle.effective_ms(5) == late_ms
    second = oracle.verdicts([("a", 5), ("b", 5)])
    assert second == {("a", late_ms, True): 1, ("b", late_ms, False): 1}


def test_the_oracle_lets_null_ids_pass() -> None:
    Oracle("1 hour").check([[(None, 0), (None, 0)]], [None, None])


def test_times_without_a_zone_are_utc() -> None:
    oracle = Oracle("1 hour")
    zoned = datetime(2024, 5, 1, tzinfo=UTC)
    assert oracle.effective_ms(zoned) == oracle.effective_ms(zoned.replace(tzinfo=None))
    assert oracle.effective_ms(zoned) == 1_714_521_600_000


def test_a_small_query_leaves_nothing() -> None:
    with small_query() as query:
        folder = Path(query.checkpoint).parent
        (folder / "checkpoint" / "offsets").mkdir(parents=True)
        assert Path(query.options["catalog"]).parent == folder
    assert not folder.exists()
