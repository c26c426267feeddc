"""Releases that do not work together, and that README, pip and the checks say the same of them."""

from __future__ import annotations

import re
import socket
import sys
import tomllib
from pathlib import Path

import pytest

from dedup.cli.failures import USAGE, explain
from dedup.errors import ConfigError, ExecutorError
from dedup.spark.versions import FIXED, PYARROW, check_driver, check_executor, numbers, problem

ROOT = Path(__file__).resolve().parents[2]
FAIL = [
    ("4.0.0", "26.0.0"), ("4.0.4", "26.0.1"), ("4.1.0", "26.0.0"), ("4.1.3", "26.0.1"),
    ("4.1.3", "100.0"), ("4.1.3.dev0", "26.0.0"), ("3.5.0", "26.0.0"), ("3.5.9", "26.0.0"),
]  # fmt: skip
WORK = [
    ("4.0.4", "25.0.1"), ("4.0.5", "26.0.1"), ("4.1.3", "9.0.0"), ("4.1.4", "26.0.1"),
    ("4.1.10", "26.0.1"), ("4.2.0", "26.0.1"), ("5.0.0.dev0", "27.0.0.dev1+g1"),
    ("unknown", "26.0.1"),
]  # fmt: skip


def test_pairs_of_releases_that_fail_are_reported_with_a_fix() -> None:
    for spark, arrow in FAIL:
        told = problem(spark, arrow) or ""
        assert f"PySpark {spark} does not work with pyarrow {arrow}" in told
        fixed = FIXED[spark[:3]]
        newer = f"either pip install 'pyspark~={fixed}' or " if fixed else ""
        assert told.endswith(f"Run {newer}pip install 'pyarrow<26'")
    assert [pair for pair in WORK if problem(*pair)] == []


@pytest.fixture
def unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.3")
    monkeypatch.setattr("pyarrow.__version__", "26.0.1")


def test_driver_and_executor_refuse_a_pair_that_fails(unfit: None) -> None:
    with pytest.raises(ConfigError, match=r"4\.1\.3 does not work with pyarrow 26\.0\.1") as here:
        check_driver()
    assert explain(here.value).exit_code == USAGE
    with pytest.raises(ExecutorError, match=r"cannot run the operator: PySpark 4\.1\.3") as there:
        check_executor()
    assert f"The executor on {socket.gethostname()} " in str(there.value)
    assert f"Its Python is {sys.executable}." in str(there.value)
    assert there.value.remedy == "executor-package"


def test_a_connect_client_runs_no_task(unfit: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    check_driver()


def test_a_release_of_a_platform_is_compared_by_its_numbers() -> None:
    assert (
        numbers("3.5.2+amzn-1") == numbers("3.5.2.dev0") == (3, 5, 2) < numbers("4.0") < (4, 0, 0)
    )


def table() -> list[tuple[list[str], list[str], list[str]]]:
    """The page's rows: releases of PySpark, of pyarrow, of pandas."""
    section = (
        (ROOT / "dedup/INSTALL.md").read_text().split("\n## Compatibility")[1].split("\n## ")[0]
    )
    rows = section.split("| PySpark | pyarrow | pandas |\n")[1].split("\n\n")[0].splitlines()[1:]
    cells = [[re.findall(r"\d+[\d.]*", cell) for cell in row.strip("|").split("|")] for row in rows]
    return [(spark, arrow, pandas) for spark, arrow, pandas in cells]


def test_the_readme_has_the_same_pairs() -> None:
    newest = max(int(arrow[-1]) for _, arrow, _ in table())
    bounded = set()
    for spark, arrow, _ in table():
        first_bad = str(int(arrow[-1]) + 1)
        for release in spark:
            assert problem(release, arrow[-1]) is None
            if int(arrow[-1]) < newest:
                assert problem(release, first_bad)
                bounded.add((release, first_bad))
    for series, fixed in FIXED.items():
        if fixed is None:
            assert {release for release, _ in bounded if release.startswith(series)}
            continue
        last = f"{series}.{int(fixed.rpartition('.')[2]) - 1}"
        assert {(f"{series}.0", PYARROW), (last, PYARROW)} <= bounded
        assert [fixed] in [spark for spark, _, _ in table()]


def test_pyproject_requires_the_same_oldest_releases() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = set(project["dependencies"]) | set(project["optional-dependencies"]["spark"])
    pyspark = min(release for spark, _, _ in table() for release in spark)
    assert f"pyspark>={pyspark.rpartition('.')[0]}" in wanted
    for name, column in (("pyarrow", 1), ("pandas", 2)):
        oldest = {row[column][0] for row in table()}
        assert len(oldest) == 1
        floor = oldest.pop()
        assert f"{name}>={floor}" in wanted
        # `make test-older` tries the floors.
        for older in (ROOT / "tests/older").glob("*.txt"):
            assert f"{name}=={floor}.*" in older.read_text().splitlines()
    assert "pandas<3" in wanted


def test_the_extra_installs_no_pair_that_fails() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert f"pyarrow<{PYARROW}" in extras["spark"]
    # Elsewhere the newest pyarrow is installed, and tested.
    others = [*project["dependencies"], *extras["test"]]
    assert not [name for name in others if name.startswith("pyarrow<")]
    assert not re.search(r"\[[^]]*\b(all|spark)\b", " ".join(extras["test"]))
