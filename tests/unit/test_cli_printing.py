"""What commands print cannot steer a terminal, wherever its text comes from."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

import dedup.cli
from dedup.cli.app import app
from dedup.cli.commands import Done, finish
from dedup.cli.figures import Figures
from dedup.cli.printing import shown
from dedup.cli.run.progress import Reporter
from dedup.cli.terminal import Terminal
from dedup.cli.watch_screen import screen, waiting
from dedup.errors import DataError
from dedup.tools.watch.metrics_log import MetricsLog
from tests.support.batch_metrics import START_MS, batch, watched

#: ESC and BEL, a carriage return, DEL, C1, an override of writing direction, half a character.
EVIL = "a\x1b]0;b\x07c\rd\x7fe\x9bf\u202eg\udce9h"
SAFE = r"a\x1b]0;b\x07c\rd\x7fe\x9bf\u202eg\udce9h"
#: Of what rich prints it leaves out some of them itself.
BY_RICH = SAFE.replace(r"\x07", "").replace(r"\r", "")


def test_control_codes_are_shown_as_text() -> None:
    assert shown(EVIL) == SAFE == shown(SAFE)
    assert shown("tab\tline\nümlaut 漢字 👍🏽 \u200d") == "tab\tline\nümlaut 漢字 👍🏽 \u200d"
    for code in (*range(9), *range(11, 32), *range(0x7F, 0xA0), *range(0xD800, 0xE000)):
        assert shown(chr(code)).isascii()
        assert shown(chr(code)).isprintable()


def test_commands_print_only_through_the_safe_terminal() -> None:
    """No `print`, and no console of rich's own; `footprint.py` speaks to its parent process."""
    folder = Path(dedup.cli.__file__).parent
    for path in folder.rglob("*.py"):
        if path.name in ("printing.py", "terminal.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                wraps_only = path.name == "watch_screen.py"
                assert name not in ("print", "typer.echo"), path
                assert name != "Console" or wraps_only, path


def test_errors_and_lines_are_printed_safely(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Done:
        raise DataError(f"It is line 2: {EVIL}", remedy="bad-records")

    for work in (fails, lambda: Done(0, {"message": EVIL}, [EVIL])):
        for as_json in (False, True):
            with pytest.raises(typer.Exit):
                finish(work, as_json=as_json)
            out, err = capsys.readouterr()
            assert SAFE in out + err or as_json
            assert_safe(out + err)
            if as_json:
                assert json.loads(out)["message"].endswith(EVIL)

    def interrupted() -> Done:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended:
        finish(interrupted, as_json=False)
    assert (ended.value.exit_code, capsys.readouterr().err) == (130, "Interrupted.\n")


def assert_safe(text: str) -> None:
    assert shown(text) == text


def test_notes_titles_and_cells_are_printed_safely() -> None:
    told = io.StringIO()
    console = Terminal(file=told, width=200)
    Reporter(console).note(f"[bold]{EVIL}")
    table = Table(title=f"dedup run [/x]{EVIL}")
    table.add_row(f"[red]{EVIL}", Text(EVIL))
    console.print(table)
    for line in waiting(f"for {EVIL}"):
        console.print(line)
    assert f"[bold]{BY_RICH}" in told.getvalue()
    assert f"[/x]{BY_RICH}" in told.getvalue()
    assert r"[red]a\x1b]0;b" in told.getvalue()
    assert_safe(told.getvalue())
    # A live line has the codes of its styles alone.
    told = io.StringIO()
    line = Reporter(Terminal(file=told, force_terminal=True, width=200))
    line.note(EVIL)
    line.update(Figures.of([], emitted=frozenset(), files=0, seconds=1.0), 3)
    line.close()
    assert BY_RICH in told.getvalue()
    assert not re.search("\x07|\x1b]", told.getvalue())


def test_watch_shows_names_and_source_partitions(tmp_path: Path) -> None:
    made = [batch(n, query_name=EVIL, gc_source=EVIL, slowest_sources=((EVIL, 5, False),))
            for n in range(3)]  # fmt: skip
    shown = watched([(START_MS, one) for one in made], START_MS, name=EVIL)
    told = io.StringIO()
    for line in screen([shown], height=60):
        Terminal(file=told, width=200).print(line)
    assert r"a\x1b]0;b" in told.getvalue()
    assert_safe(told.getvalue())
    log = MetricsLog(tmp_path)
    for one in made:
        log.batch(one, START_MS)
    done = CliRunner().invoke(app, ["watch", str(tmp_path), "--once"])
    assert_safe(done.output)
    assert r"a\x1b" in done.output


def test_arguments_with_control_codes_are_printed_safely() -> None:
    done = CliRunner().invoke(app, ["remedies", "x", f"{EVIL}"])
    assert done.exit_code == 2
    assert_safe(done.output)
    assert r"a\x1b" in done.output
    assert r"a\x1b" in CliRunner().invoke(app, ["catalog", "inspect", f"/none/{EVIL[:6]}"]).output


def test_logged_warnings_are_printed_safely() -> None:
    """Python prints them like this if no one has set up logging."""
    program = (
        "import logging, sys; sys.argv[1:] = ['--version']\n"
        "from dedup.cli.main import main; main()\n"
        f"logging.getLogger('dedup').warning('query %s', {EVIL!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert done.stderr.decode() == f"query {SAFE}\n"


@pytest.mark.parametrize("arguments", ["--version", "--version --json"])
def test_a_reader_that_closes_the_pipe_early_causes_no_error(arguments: str) -> None:
    command = f"'{sys.executable}' -m dedup.cli.main {arguments} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_closed_pipe_is_left_to_the_caller() -> None:
    """Rich itself would exit with code 1 after the verdict is known."""

    class Closed(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Terminal(file=Closed()).print("a line")
