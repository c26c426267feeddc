"""Copy a topic into another topic or into a table, killing the query again and again.

    python -m tests.kafka.demo [--sink SINK] [--servers HOST:PORT] [--kills N] [--folder DIR]

It ends with a table of what was counted, and with code 1 if a figure is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console

from dedup.cli.demo import Check, check_table
from tests.databases.mysql_server import MysqlServer, unpacked
from tests.databases.postgres_server import PostgresServer, missing
from tests.kafka.broker import running_broker
from tests.kafka.demo.producers import Load
from tests.kafka.demo.run import run
from tests.kafka.demo.targets import Target, Topic, mysql_table, postgres_table


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.kafka.demo", description=__doc__)
    parser.add_argument("--sink", choices=("kafka", "postgres", "mysql"), default="kafka")
    parser.add_argument("--servers", help="a broker that runs; default: one is started")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8, help="of a producer between kills")
    parser.add_argument("--folder", type=Path, help="keeps checkpoint, catalog and logs")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    flags = parser.parse_args()
    said, begun_s = Console(stderr=True), time.monotonic()

    def note(text: str) -> None:
        said.print(text, markup=False, highlight=False, soft_wrap=True)

    if flags.sink == "postgres" and (reason := missing()):
        note(f"{reason}: pip install 'rolling-dedup[test]'")
        return 2
    with ExitStack() as stack:
        scratch = tempfile.TemporaryDirectory(prefix="dedup-demo-", ignore_cleanup_errors=True)
        made = Path(stack.enter_context(scratch))
        made.chmod(0o755)  # a server that root starts runs as another user
        folder = flags.folder or made / "query"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            into: Callable[[str], Target]
            servers = flags.servers or stack.enter_context(running_broker(made))
            load = Load(stretches=flags.kills + 1, batches=flags.batches)
            if flags.sink == "kafka":
                into = partial(Topic, servers)
            elif flags.sink == "postgres":
                postgres = PostgresServer(made / "data")
                into = partial(postgres_table, stack.enter_context(postgres))
            else:
                mysql = MysqlServer(unpacked(), made / "data")
                into = partial(mysql_table, stack.enter_context(mysql))
            checks = run(servers, folder, load, note, into)
        except OSError as error:
            note(str(error))
            return 1
    return show(checks, time.monotonic() - begun_s, as_json=flags.json)


def show(checks: list[Check], seconds: float, *, as_json: bool) -> int:
    """Print what was counted; return the exit code."""
    good = all(check.good for check in checks)
    if as_json:
        told = {"status": "ok" if good else "wrong", "checks": [asdict(check) for check in checks]}
        print(json.dumps({**told, "seconds": round(seconds, 1)}))
    else:
        Console().print(check_table(checks))
        verdict = "Every figure is right." if good else "SOME FIGURES ARE WRONG."
        Console().print(f"{verdict} {seconds:.0f} s.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
