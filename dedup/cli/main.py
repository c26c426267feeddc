"""Entry point of the `dedup` command. It reports an extra that is not installed."""

from __future__ import annotations

import logging
import os
import sys

from dedup.cli.printing import ShownLog, say, version_lines, while_read
from dedup.errors import MissingExtraError

#: Extra that installs each top-level module that the command uses.
_EXTRA_OF = {
    "typer": "cli",
    "rich": "cli",
    "prometheus_client": "metrics",
    "pyspark": "spark",
    "py4j": "spark",
}


def main() -> None:
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(ShownLog())
    if sys.argv[1:2] == ["--version"]:
        with while_read():
            say("\n".join(version_lines()))
        return
    try:
        from dedup.cli.app import app

        app(prog_name="dedup")
    except MissingExtraError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        # A module that is there may lack a part, as in another release.
        if module not in _EXTRA_OF or sys.modules.get(module):
            raise
        _fail(str(MissingExtraError(_EXTRA_OF[module], "The dedup command")))
    except SystemExit as end:
        _exit_at_once(end)
        raise


def _exit_at_once(end: SystemExit) -> None:
    """Exit without waiting for threads, because some may wait for a storage that hangs."""
    contact = sys.modules.get("dedup.storage.timeouts")
    if contact is not None and contact.is_waiting():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


def _fail(message: str) -> None:
    say(f"error: {message}", as_error=True)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
