"""What one Python worker takes for its share of a micro-batch: measured in a process of its own.

``python -m dedup.tools.tuning.footprint ROWS KEY_BYTES`` prints the peak of resident bytes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from contextlib import suppress

from dedup.core.policy import Policy
from dedup.tools.tuning.costs import scratch_store
from dedup.tools.tuning.load import Load, drive, synthetic_keys

#: Beyond so many records the answer is scaled up.
MAX_ROWS = 1_000_000
_HOUR_MS = 3_600_000


def worker_bytes(rows: int, key_bytes: int) -> int:
    """Return the peak memory of a process that judges so many records at once.

    Parameters
    ----------
    rows : int
        At least 1.
    key_bytes : int
        Length of an ID's canonical bytes.
    """
    least, share = _peak(1, key_bytes), min(rows, MAX_ROWS)
    return least + round(max(0, _peak(share, key_bytes) - least) * rows / share)


def _peak(rows: int, key_bytes: int) -> int:
    command = [sys.executable, "-m", "dedup.tools.tuning.footprint", str(rows), str(key_bytes)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _peak_of_this_process() -> int:
    with suppress(OSError), open("/proc/self/status") as status:
        # Unlike getrusage it does not know what the parent took.
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _judge(rows: int, key_bytes: int) -> None:
    # What a worker of Spark has loaded when the group function begins.
    with suppress(ImportError):
        import dedup.spark.executor.group  # noqa: F401
    policy = Policy(horizon_ms=24 * _HOUR_MS, bucket_ms=3 * _HOUR_MS, event_time=True)
    load = Load(rows=max(2, rows), batch_ms=_HOUR_MS, policy=policy)
    with scratch_store() as (store, hash_key):
        for _ in drive(load, 2, synthetic_keys(key_bytes), lambda n: store, hash_key=hash_key):
            pass


if __name__ == "__main__":
    _judge(*map(int, sys.argv[1:]))
    print(_peak_of_this_process())  # noqa: T201
