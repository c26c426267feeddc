"""How a command ends: what it prints, and its exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import typer

from dedup.causes import LINK
from dedup.cli.failures import INTERRUPTED, TRACEBACK, explain


class Done(NamedTuple):
    """What a command has done: its exit code, what ``--json`` prints, and what people read."""

    code: int
    body: dict[str, Any]
    lines: Iterable[str] = ()


@contextmanager
def while_read() -> Iterator[None]:
    """Print for as long as someone reads: a pipe that is closed early is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left would be flushed at the end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def finish(work: Callable[[], Done], *, as_json: bool) -> None:
    """Run a command's work, print what is due, and leave with the exit code."""
    try:
        done = work()
    except KeyboardInterrupt:
        done = Done(INTERRUPTED, {"status": "interrupted"})
    except typer.Exit:
        raise
    except ModuleNotFoundError:
        raise
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        failure = explain(error)
        body = {"status": "failed", "error": failure.kind, "message": failure.message}
        print(f"error: {failure.message}", file=sys.stderr)
        if failure.remedy is not None:
            body["remedy"] = failure.remedy
            print(f"{LINK}{failure.remedy}", file=sys.stderr)
        done = Done(failure.exit_code, body)
    with while_read():
        if as_json:
            print(json.dumps(done.body | {"exit_code": done.code}, sort_keys=True))
        else:
            for line in done.lines:
                print(line)
    raise typer.Exit(done.code)
