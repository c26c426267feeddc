"""How a command ends: what it prints, and its exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import typer

from dedup.cli.failures import INTERRUPTED, TRACEBACK, explain
from dedup.cli.printing import say, while_read
from dedup.errors.cause import LINK


class Done(NamedTuple):
    """What a command has done: its exit code, what ``--json`` prints, and what people read."""

    code: int
    body: dict[str, Any]
    lines: Iterable[str] = ()


def finish(work: Callable[[], Done], *, as_json: bool) -> None:
    """Run a command's work, print what is due, and leave with the exit code."""
    try:
        done = work()
    except KeyboardInterrupt:
        say("Interrupted.", as_error=True)
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
        say(f"error: {failure.message}", as_error=True)
        if failure.remedy is not None:
            body["remedy"] = failure.remedy
            say(f"{LINK}{failure.remedy}", as_error=True)
        done = Done(failure.exit_code, body)
    with while_read():
        if as_json:
            # JSON escapes all that steers a terminal but for DEL.
            told = json.dumps(done.body | {"exit_code": done.code}, sort_keys=True)
            say(told.replace("\x7f", "\\u007f"))
        else:
            for line in done.lines:
                say(line)
    raise typer.Exit(done.code)
