"""The command answers a missing extra with the line that installs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.processes import dedup, python


def without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from dedup.cli.main import main\n"
        f"sys.argv = {['dedup', *arguments]!r}\n"
        "main()\n"
    )
    return python("-c", code)


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_a_missing_cli_extra_is_reported_with_the_install_command(module: str) -> None:
    done = without(module, "run")
    assert done.returncode == 1
    assert "needs the extra 'cli', which is not installed: pip install rich typer" in done.stderr
    assert len(done.stderr.strip().split("\n")) == 1
    done = without(module, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("dedup ")


def test_run_without_spark_reports_the_install_command(tmp_path: object) -> None:
    arguments = ["run", str(tmp_path), "--id", "a", "--horizon", "1 day"]
    done = without("pyspark", *arguments, "--format", "csv", "--output", f"{tmp_path}-out")
    assert done.returncode == 1
    assert "needs the extra 'spark', which is not installed: pip install " in done.stderr
    assert "'pyspark>=3.5'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["dedup_by_id", "DedupListener", "check_query"])
def test_importing_a_spark_feature_without_spark_names_the_extra(name: str) -> None:
    code = f"import sys; sys.modules['pyspark'] = None\nfrom dedup import {name}"
    done = python("-c", code)
    assert done.stderr.endswith(
        f"dedup.errors.MissingExtraError: dedup.{name} needs the extra 'spark', which is not "
        "installed: pip install 'pandas<3' 'pyarrow<26' 'pyspark>=3.5'\n"
    )
    assert done.stderr.count("Traceback") == 1


def test_a_module_that_pyspark_lacks_is_not_reported_as_a_missing_extra() -> None:
    """As in another release of PySpark."""
    code = (
        "import sys, pyspark; sys.modules['pyspark.sql.streaming.listener'] = None\n"
        "from dedup import DedupListener"
    )
    told = python("-c", code).stderr
    assert "import of pyspark.sql.streaming.listener halted" in told
    assert "needs the extra" not in told


def test_run_without_java_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.csv").write_text("a\n1\n")
    arguments = ["run", f"{tmp_path}/in", "--id", "a", "--horizon", "1 day"]
    done = dedup(*arguments, "--output", f"{tmp_path}/out", JAVA_HOME="/nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith("error: Spark does not start: ")
    assert "Spark needs Java 17 or newer: install it (Debian and Ubuntu: apt i" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_pyspark_without_accumulator_tcp_server_gets_as_far_as_starting_java() -> None:
    """PySpark 4.0 has no `AccumulatorTCPServer`."""
    code = (
        "from pyspark import accumulators; vars(accumulators).pop('AccumulatorTCPServer', None)\n"
        "from dedup.cli.session import reading_session\n"
        "with reading_session(): pass\n"
    )
    done = python("-c", code, env={"JAVA_HOME": "/nowhere"})
    assert "MachineError: Spark does not start: " in done.stderr


def test_version_lists_the_kernel_and_the_dependencies() -> None:
    from dedup import kernel

    done = dedup("--version")
    assert done.returncode == 0
    lines = dict(line.split(" ", 1) for line in done.stdout.strip().split("\n"))
    assert lines["kernel"] == kernel.PATH
    assert {"dedup", "pyspark", "pandas", "pyarrow", "rocksdict"} <= set(lines)


def test_usage_errors_exit_with_2(tmp_path: object) -> None:
    assert dedup("run").returncode == 2
    assert dedup("run", "--colour").returncode == 2
    done = dedup(
        "run", "/no/such", "--id", "a", "--horizon", "1 day", "--output", f"{tmp_path}/o", "--json"
    )
    assert done.returncode == 2
    assert done.stderr == "error: INPUT /no/such does not exist.\n"
    assert done.stdout.count("\n") == 1
