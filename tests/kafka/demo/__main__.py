"""Copy a topic into another on a real broker, killing the query again and again.

    python -m tests.kafka.demo [--servers HOST:PORT] [--kills N] [--folder DIR] [--json]

It ends with a table of what was counted, and with code 1 where a figure is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from dedup.cli.demo import check_table
from tests.kafka.broker import running_broker
from tests.kafka.demo.producers import Load
from tests.kafka.demo.run import Outcome, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.kafka.demo", description=__doc__)
    parser.add_argument("--servers", help="a broker that runs; default: one is started")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--batches", type=int, default=8, help="of a producer between kills")
    parser.add_argument("--folder", type=Path, help="keeps checkpoint, catalog and logs")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    flags = parser.parse_args()
    said = Console(stderr=True)
    load = Load(stretches=flags.kills + 1, batches=flags.batches)
    with ExitStack() as stack:
        folder = flags.folder or Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="dedup-demo-", ignore_cleanup_errors=True)
            )
        )
        folder.mkdir(parents=True, exist_ok=True)

        def note(text: str) -> None:
            said.print(text, markup=False, highlight=False, soft_wrap=True)

        try:
            servers = flags.servers or stack.enter_context(running_broker(folder))
            outcome = run(servers, folder, load, note)
        except OSError as error:
            note(str(error))
            return 1
    show(outcome, as_json=flags.json)
    return 0 if outcome.good else 1


def show(outcome: Outcome, *, as_json: bool) -> None:
    """Print what was counted."""
    if as_json:
        body = {
            "status": "ok" if outcome.good else "wrong",
            "checks": [asdict(check) for check in outcome.checks],
            "kills": [asdict(kill) for kill in outcome.kills],
            "seconds": round(outcome.seconds, 1),
        }
        print(json.dumps(body))
        return
    console = Console()
    console.print(check_table(outcome.checks))
    verdict = "Every figure is right." if outcome.good else "SOME FIGURES ARE WRONG."
    console.print(f"{verdict} {outcome.seconds:.0f} s.")


if __name__ == "__main__":
    sys.exit(main())
