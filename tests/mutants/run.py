"""Break the source on purpose, one place at a time, and see which test notices.

    python -m tests.mutants.run [--only TEXT] [--part I/N] [--seconds 180]

Works on a copy of package and tests. A mutant that survives, or that no longer applies, fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
MODEL = "model"
#: Pytest's exit code when tests failed; others, such as "no tests", mean nothing was shown.
TESTS_FAILED = 1


@dataclass(frozen=True)
class Result:
    """What became of a mutant: the test that caught it, None where none did."""

    mutant: Mutant
    caught_by: str | None
    seconds: float


class Copy:
    """A copy of package and tests, in which mutants come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignore = shutil.ignore_patterns("__pycache__", ".hypothesis", "cluster")
        for name in ("dedup", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", folder)
        told = self._python("-c", "import dedup; print(dedup.__file__)", seconds=60)
        if Path(told.stdout.strip()).parent != folder / "dedup":
            raise RuntimeError(f"the copy is not what is imported, but {told.stdout}{told.stderr}")

    def run(self, tests: str, seconds: float) -> tuple[int, str]:
        """Run a selection of tests; return pytest's exit code and the first that failed."""
        done = self._python(
            "-m", "pytest", f"tests/{tests}", "-x", "-q", "--tb=no", "-p", "no:cacheprovider",
            "-p", "no:benchmark", seconds=seconds,
        )  # fmt: skip
        failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE)
        return done.returncode, failed[1] if failed else done.stdout[-300:] + done.stderr[-300:]

    def _python(self, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        # Stale bytecode would hide a mutant that is as long as what it replaces.
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self.folder)}
        env.pop("CI_FULL", None)
        try:
            return subprocess.run(
                [sys.executable, *arguments], cwd=self.folder, env=env, capture_output=True,
                text=True, check=False, timeout=seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(arguments, -1, f"not done in {seconds:.0f} s", "")


def try_mutant(copy: Copy, mutant: Mutant, seconds: float) -> Result:
    """Put a mutant in, run its tests until one fails, and take it out again."""
    path = copy.folder / "dedup" / mutant.file
    original = path.read_text()
    began_s = time.monotonic()
    path.write_text(mutant.applied(copy.folder / "dedup"))
    try:
        for tests in (*mutant.tests, MODEL):
            code, failed = copy.run(tests, seconds)
            if code == TESTS_FAILED or code < 0:  # a signal: the mutant crashed the process
                caught_by = failed if code == TESTS_FAILED else f"{tests} (crashed)"
                return Result(mutant, caught_by, time.monotonic() - began_s)
            if code != 0:
                print(f"{mutant.name}: {tests} showed nothing: {failed}", flush=True)
        return Result(mutant, None, time.monotonic() - began_s)
    finally:
        path.write_text(original)


def broken_without_mutants(copy: Copy, mutants: list[Mutant], seconds: float) -> list[str]:
    """Tests of the selections that fail anyway, and so could catch nothing."""
    selections = sorted({tests for mutant in mutants for tests in mutant.tests} | {MODEL})
    broken = []
    for tests in selections:
        code, failed = copy.run(tests, seconds)
        if code != 0:
            broken.append(f"{tests}: {failed}")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose name holds this text")
    parser.add_argument("--seconds", type=float, default=180, help="limit of one selection")
    parser.add_argument(
        "--unchecked", action="store_true", help="take it that the tests pass without mutants"
    )
    parser.add_argument("--part", default="0/1", help="I/N: every Nth mutant from the Ith")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    mutants = [mutant for mutant in MUTANTS if given.only in mutant.name][part::parts]
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder).resolve())
        broken = [] if given.unchecked else broken_without_mutants(copy, mutants, given.seconds)
        if broken:
            print("Failing without any mutant:", *broken, sep="\n  ")
            return 1
        results = []
        for mutant in mutants:
            result = try_mutant(copy, mutant, given.seconds)
            results.append(result)
            print(
                f"{result.seconds:6.1f} s  {mutant.name:<62}  {result.caught_by or 'SURVIVED'}",
                flush=True,
            )
    survived = [result for result in results if result.caught_by is None]
    print(f"{len(results) - len(survived)} of {len(results)} mutants caught")
    return 1 if survived or not results else 0


if __name__ == "__main__":
    raise SystemExit(main())
