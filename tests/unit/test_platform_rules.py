"""Every rule of `dedup doctor`: when it fires, and what it says."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from dedup.cli.doctor import doctor
from dedup.cli.flags import DoctorFlags
from dedup.core.version import VERSION
from dedup.errors import ConfigError, DedupError
from dedup.storage.root import Root
from dedup.tools.check.findings import Finding, Level
from dedup.tools.check.machine_probe import folder_facts, machine_facts, release_of
from dedup.tools.check.platform_rules import Platform, check_servers, judge
from dedup.tools.check.root_probe import MARK, RootProbe

STOPS, COSTS, UNKNOWN, FINE = Level.STOPS, Level.COSTS, Level.UNKNOWN, Level.FINE
SERVER = "kafka-1:9092"


def machine(host: str, **changes: Any) -> dict[str, Any]:
    """A machine that can run everything, except for the changes; ``__`` leads into a fact."""
    releases = {"pyspark": "4.3.0", "pandas": "2.3.3", "pyarrow": "26.0.1", "numpy": "2.4.6"}
    facts: dict[str, Any] = {
        "host": host,
        "python": "3.11.7",
        "executable": "/opt/python",
        "libraries": {name: {"release": one, "problem": None} for name, one in releases.items()},
        "package": {"release": VERSION, "problem": None},
        "kernel": "native-avx2",
        "folders": [
            {"path": "/disk", "medium": "ext4", "free_bytes": 1 << 40, "write": None,
             "link": None, "rename": None, "sync": None},
        ],
        "servers": {SERVER: None},
        "root": {"ms": {"create": 5.0, "read": 2.0}, "problem": None, "sees_driver": True},
    }  # fmt: skip
    facts = deepcopy(facts)
    for path, value in changes.items():
        *folders, name = path.split("__")
        place: Any = facts
        for folder in folders:
            place = place[int(folder) if folder.isdecimal() else folder]
        place[name] = value
    return facts


def platform(*executors: dict[str, Any], **facts: Any) -> Platform:
    defaults = {"root": "s3://bucket/dedup", "sees_files": {"one": True}}
    return Platform(driver=machine("driver"), executors=[*executors], **{**defaults, **facts})


def of(rule: str, judged: Platform) -> list[Finding]:
    return [finding for finding in judge(judged) if finding.rule == rule]


ONE = machine("one")
#: A rule, the executor's change, the level, and what the finding says.
OF_AN_EXECUTOR = [
    ("libraries", {"libraries__pandas__problem": "ModuleNotFoundError: x"}, STOPS,
     r"On one: pandas cannot be imported \(ModuleNotFoundError: x\)"),
    ("libraries", {"libraries__pyspark__release": "4.1.2"}, STOPS,
     r"On one: PySpark 4\.1\.2 does not work with pyarrow 26\.0\.1"),
    ("libraries", {"libraries__numpy__release": "1.26.4"}, UNKNOWN,
     r"different releases of numpy: 1\.26\.4, 2\.4\.6"),
    ("package", {"package": {"release": None, "problem": "No module named 'dedup'"}}, STOPS,
     r"On one: the package cannot be imported \(No module named 'dedup'\)"),
    ("package", {"package__release": "0.0.9"}, STOPS, r"On one: rolling-dedup 0\.0\.9\. This"),
    ("kernel", {"kernel": "numpy"}, COSTS, "On one: numpy computes"),
    ("local-disk", {"folders__0__write": "OSError: read-only"}, STOPS,
     "/disk on one cannot be used: OSError: read-only"),
    ("local-disk", {"folders__0__rename": "OSError: no"}, STOPS, "/disk on one cannot be used"),
    ("local-disk", {"folders__0__free_bytes": 3 << 20}, COSTS, "/disk on one has 3 MiB free"),
    ("local-disk", {"folders__0__medium": "tmpfs"}, COSTS, r"is in memory \(tmpfs\)"),
    ("local-disk", {"folders__0__link": "OSError: no"}, FINE, "Without link, files are copied"),
    ("catalog", {"root": {"problem": "cannot write: ACCESS_DENIED", "ms": {}}}, STOPS,
     r"On one: s3://bucket/dedup cannot be used\. cannot write: ACCESS_DENIED"),
    ("catalog", {"root__sees_driver": False}, STOPS,
     "On one: s3://bucket/dedup does not have what the driver wrote"),
    ("catalog", {"root__ms__create": 1500.0}, COSTS, "answers slowly: create 1,500 ms"),
    ("catalog", {"root": None}, UNKNOWN, "On one: s3://bucket/dedup was not tried"),
    ("servers", {"servers__kafka-1:9092": "TimeoutError: timed out"}, STOPS,
     r"On one: kafka-1:9092 cannot be reached \(TimeoutError: timed out\)"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "changes", "level", "evidence"), OF_AN_EXECUTOR)
def test_a_fact_of_an_executor_is_judged(
    rule: str, changes: dict[str, Any], level: Level, evidence: str
) -> None:
    judged = of(rule, platform(machine("one", **changes), machine("two")))
    (finding,) = [one for one in judged if one.level is level]
    assert re.search(evidence, finding.evidence), finding.evidence
    assert (finding.change is None) == (level is FINE or "was not tried" in evidence)


def test_a_platform_without_faults_has_only_fine_findings() -> None:
    judged = judge(platform(ONE, machine("two"), is_mount=True))
    assert {finding.level for finding in judged} == {FINE}
    assert {finding.rule for finding in judged} == {
        "executors", "python", "libraries", "package", "kernel", "local-disk", "processes",
        "catalog", "servers",
    }  # fmt: skip
    (root,) = of("catalog", platform(ONE, is_mount=True))
    assert root.evidence.endswith("Queries need shared_local=True.")


def test_machines_with_the_same_fault_share_a_finding() -> None:
    hosts = [machine(name, kernel="numpy") for name in "abcde"]
    (finding,) = of("kernel", platform(*hosts))
    assert finding.evidence.startswith("On a, b, c and 2 more: numpy computes")


def test_executors_that_ran_no_task_are_reported() -> None:
    (finding,) = of("executors", platform(ONE, expected_executors=3))
    assert (finding.level, finding.evidence[:16]) == (UNKNOWN, "1 of 3 executors")


def test_a_job_that_fails_is_reported() -> None:
    judged = platform(problem="Cannot run program", sees_files=None)
    (finding,) = (one for one in judge(judged) if one.level is not FINE)
    assert finding.rule == "executors"
    assert finding.evidence == "A job of the check failed: Cannot run program"


@pytest.mark.parametrize(("sees", "level"), [({"one": False}, COSTS), (None, UNKNOWN)])
def test_processes_that_may_have_different_disks_are_reported(sees: Any, level: Level) -> None:
    (finding,) = of("processes", platform(ONE, sees_files=sees))
    assert finding.level is level


def test_a_root_that_the_driver_cannot_use_is_reported() -> None:
    judged = Platform(driver=machine("driver", root={"problem": "no"}), executors=[], root="s3://b")
    (finding,) = of("catalog", judged)
    assert (finding.level, finding.evidence) == (STOPS, "On driver: s3://b cannot be used. no")


# --- the probes


def test_the_facts_of_this_machine_name_its_releases() -> None:
    facts = machine_facts(["localhost:1"])
    assert facts["package"] == {"release": VERSION, "problem": None}
    assert all(one["release"] for one in facts["libraries"].values())
    assert "ConnectionRefusedError" in facts["servers"]["localhost:1"]
    missing = release_of("dedup_missing")
    assert missing["release"] is None
    assert "No module named 'dedup_missing'" in str(missing["problem"])


def test_a_folder_is_left_as_it_was(tmp_path: Path) -> None:
    facts = folder_facts(str(tmp_path))
    assert [facts[what] for what in ("write", "link", "rename", "sync")] == [None] * 4
    assert facts["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []
    assert folder_facts("/proc")["write"] is not None
    assert folder_facts("/proc")["medium"] == "proc"


def test_a_root_is_used_and_left_as_it_was(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.put_bytes(f"probe-1/{MARK}", b"content")
    facts = RootProbe(root, "probe-1", b"content").facts()
    assert (facts["problem"], facts["sees_driver"]) == (None, True)
    assert list(facts["ms"]) == ["create", "read", "list", "copy", "create again", "delete"]
    assert [file.name for file in root.list()] == [f"probe-1/{MARK}"]
    other = RootProbe(root, "probe-1", b"of another driver").facts()
    assert (other["sees_driver"], other["ms"]) == (False, {})
    unread = RootProbe(Root("/proc/self/none"), "probe-1", b"").facts()
    assert unread["sees_driver"] is False


def test_a_root_that_writes_nothing_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root(tmp_path)
    root.put_bytes(f"probe-1/{MARK}", b"content")
    monkeypatch.setattr(Root, "list", lambda *_: ())
    facts = RootProbe(root, "probe-1", b"content").facts()
    assert facts["problem"] == "the step 'list' has another result than on a file system"


def test_a_function_of_the_user_that_fails_is_reported_with_the_root() -> None:
    def catalog() -> Any:
        raise ValueError("no rights here")

    facts = RootProbe(Root(catalog), "probe-1", b"").facts()
    assert facts["problem"] == "ValueError: no rights here"
    judged = of("catalog", platform(machine("one", root=facts)))
    assert [(one.level, one.evidence) for one in judged] == [
        (STOPS, "On one: s3://bucket/dedup cannot be used. ValueError: no rights here")
    ]


@pytest.mark.parametrize(
    "servers", ["kafka:1", ["kafka"], ["pg://u:secret@db:1"], ["u@db:1"], ["::1:9"], ["a:x"], [""]]
)
def test_a_server_that_is_not_a_host_and_a_port_is_refused(servers: Any) -> None:
    with pytest.raises(ConfigError, match="servers: give each server as HOST:PORT") as refused:
        check_servers(servers, "servers")
    assert "secret" not in str(refused.value)
    check_servers(["kafka-1:9092", "[::1]:5432", "10.0.0.1:1"], "servers")


@pytest.mark.parametrize(
    ("master", "kind", "message"),
    [
        ("nonsense", ConfigError, "--master is not a master of Spark"),
        ("sc://localhost:1/;token=secret", DedupError, "Spark does not answer at localhost:1: "),
    ],
)
def test_a_master_that_cannot_answer_is_an_error(
    master: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as failed:
        doctor(DoctorFlags(master=master))
    assert "secret" not in str(failed.value)
