"""Random inputs to every decoder for some minutes: `make fuzz FUZZ_ARGS="--minutes 10"`.

Every target runs in its own process, which leaves the input it is at in a file, so that a
crash of the interpreter is a finding as well. `--sanitize` runs on a build with the address and
undefined-behaviour sanitizers.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

SANITIZE = Path(__file__).parents[2] / "native" / "sanitize.sh"
MODULE = "tests.damage.fuzz"
#: Largest input that is kept for a report.
KEPT_BYTES = 1 << 20


def fuzz(target: Any, seed: int, *, inputs: int = 0, seconds: float = 0.0, keep: Any = None) -> Any:
    """Give a target inputs until their number or the time is up; return counts.

    Raises
    ------
    AssertionError
        At the first input that it does not stand; the text has seed, number and input.
    """
    rng = random.Random(f"{seed} {target.name}")
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    while counts["inputs"] < inputs or (seconds and time.monotonic() < until):
        data = target.make(rng)
        if keep is not None and len(data) < KEPT_BYTES - 4:
            keep[: 4 + len(data)] = struct.pack("<I", len(data)) + data
        counts["inputs"] += 1
        try:
            counts["accepted"] += target.check(data)
        except Exception as exc:
            raise AssertionError(
                f"{target.name}: {type(exc).__name__}: {str(exc)[:300]} at input "
                f"{counts['inputs']} of seed {seed}: {data[:2000]!r}"
            ) from exc
    return dict(counts)


def child(name: str, seed: int, seconds: float, kept: str) -> None:
    """Run one target; print its counts."""
    from tests.damage.targets import targets

    (target,) = [each for each in targets() if each.name == name]
    with open(kept, "r+b") as file, mmap.mmap(file.fileno(), KEPT_BYTES) as keep:
        print(json.dumps(fuzz(target, seed, seconds=seconds, keep=keep)))


def run(minutes: float, seed: int, only: str) -> int:
    """Run all targets, each its share of the time; return the exit code."""
    from tests.damage.targets import targets

    names = [target.name for target in targets() if only in target.name]
    seconds = minutes * 60 / len(names)
    total = failed = 0
    for name in names:
        with tempfile.NamedTemporaryFile(prefix="dedup-fuzz-") as kept:
            kept.truncate(KEPT_BYTES)
            done = subprocess.run(
                [sys.executable, "-m", MODULE, "--child", name, "--seed", str(seed),
                 "--seconds", str(seconds), "--kept", kept.name],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                failed += 1
                (size,) = struct.unpack("<I", kept.read(4))
                print(f"{name}: FAILED ({done.returncode})\n{done.stderr[-3000:]}")
                print(f"its last input: {kept.read(size)!r:.4000}")
                continue
        counts = json.loads(done.stdout.splitlines()[-1])
        total += counts["inputs"]
        print(f"{name:32} {counts['inputs']:>12,} inputs {counts['accepted']:>12,} accepted",
              flush=True)  # fmt: skip
    print(f"{total:,} inputs to {len(names)} decoders in {minutes:g} minutes, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--only", default="", help="Targets whose name contains this.")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--kept", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.seed, given.seconds, given.kept)
        return 0
    if given.sanitize:
        arguments = [a for a in sys.argv[1:] if a != "--sanitize"]
        return subprocess.run(
            ["sh", str(SANITIZE), "--run", "-m", MODULE, *arguments],
            env={**os.environ, "PYTHON": os.environ.get("PYTHON", sys.executable)},
            check=False,
        ).returncode
    print(f"seed {given.seed}", flush=True)
    return run(given.minutes, given.seed, given.only)


if __name__ == "__main__":
    sys.exit(main())
