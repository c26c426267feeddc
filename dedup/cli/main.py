"""Entry point of the `dedup` command; says which extra to install where one is missing."""

from __future__ import annotations

import sys

from dedup.errors import MissingExtraError

#: Top-level modules of the extras that the command uses.
_EXTRA_OF = {
    "typer": "cli",
    "rich": "cli",
    "prometheus_client": "metrics",
    "pyspark": "spark",
    "py4j": "spark",
}


def main() -> None:
    """Run the command and leave with its exit code."""
    try:
        from dedup.cli.app import app

        app(prog_name="dedup")
    except MissingExtraError as error:
        _leave(str(error))
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _leave(str(MissingExtraError(extra, "The dedup command")))


def _leave(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
