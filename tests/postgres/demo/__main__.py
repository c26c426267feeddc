"""Load a topic into a table on real servers, killing the query and restarting PostgreSQL.

    python -m tests.postgres.demo [--servers HOST:PORT] [--kills N] [--folder DIR]

It ends with a table of what was counted, and with code 1 where a figure is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from dedup.cli.demo import check_table
from tests.kafka.broker import running_broker
from tests.kafka.demo.producers import Load
from tests.postgres.demo.run import run
from tests.postgres.server import own_server


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.postgres.demo", description=__doc__)
    parser.add_argument("--servers", help="a broker that runs; default: one is started")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8, help="of a producer between kills")
    parser.add_argument("--folder", type=Path, help="keeps checkpoint, catalog and logs")
    flags = parser.parse_args()
    said, begun_s = Console(stderr=True), time.monotonic()

    def note(text: str) -> None:
        said.print(text, markup=False, highlight=False, soft_wrap=True)

    with ExitStack() as stack:
        made = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="dedup-demo-", ignore_cleanup_errors=True)
            )
        )
        made.chmod(0o755)  # a server that root starts runs as another user
        server = own_server(made / "data")
        if isinstance(server, str):
            note(f"{server}: pip install 'rolling-dedup[test]'")
            return 2
        stack.enter_context(server)
        folder = flags.folder or made / "query"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            servers = flags.servers or stack.enter_context(running_broker(made))
            load = Load(stretches=flags.kills + 1, batches=flags.batches)
            checks = run(servers, server, folder, load, note)
        except OSError as error:
            note(str(error))
            return 1
    good = all(check.good for check in checks)
    Console().print(check_table(checks))
    verdict = "Every figure is right." if good else "SOME FIGURES ARE WRONG."
    Console().print(f"{verdict} {time.monotonic() - begun_s:.0f} s.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
