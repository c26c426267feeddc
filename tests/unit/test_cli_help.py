"""Help screens of every command: `-h`, 80 columns, and no words of typer's own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from dedup.cli.app import app

#: Screens on a terminal of 80 columns.
RUNNER = CliRunner(env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"})


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, with the words that lead to it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *path, name)


COMMANDS = dict(commands(get_command(app)))


def test_the_list_of_commands_is_complete() -> None:
    assert set(COMMANDS) >= {(), ("run",), ("watch",), ("catalog",), ("catalog", "inspect")}
    assert len(COMMANDS) >= 14


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "dedup")
def test_every_help_screen_fits_80_columns_and_explains_every_option(path: tuple[str, ...]) -> None:
    shown = RUNNER.invoke(app, [*path, "--help"])
    assert shown.exit_code == 0
    assert RUNNER.invoke(app, [*path, "-h"]).stdout == shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "…" not in shown.stdout
    command = COMMANDS[path]
    if not hasattr(command, "commands"):
        example = re.search(r"Example: (dedup .*)$", shown.stdout.rstrip(), re.DOTALL)
        assert example is not None
        program, *words = shlex.split(example[1])
        assert (program, *words[: len(path)]) == ("dedup", *path)
        # The real command line takes it.
        command.make_context(path[-1], words[len(path) :])
    assert re.search(r"--help +-h ", shown.stdout)
    assert not re.search(r"<(bool|str|int|float|path|list)|[{}]|\[\[", shown.stdout)
    usage = re.search(r"Usage:.*", shown.stdout)
    assert usage is not None
    for parameter in COMMANDS[path].params:
        assert parameter.help, f"{parameter.name} has no words of help"
        if parameter.param_type_name == "argument":
            assert f" {parameter.metavar} " in usage[0]


def test_paragraphs_are_wrapped_to_the_screen() -> None:
    shown = RUNNER.invoke(app, ["explain", "--help"]).stdout
    assert "cannot tell: without --checkpoint the newest" in " ".join(shown.split())
    assert not re.search(r"without *\n", shown)


def test_a_usage_error_shows_the_usage_and_the_help_command() -> None:
    told = RUNNER.invoke(app, ["explain"])
    assert told.exit_code == 2
    assert "Usage: dedup explain [OPTIONS] ROOT ID...\n" in told.stderr
    assert "Try 'dedup explain --help'" in told.stderr
