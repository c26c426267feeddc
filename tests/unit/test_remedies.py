"""REMEDIES.md: every error that names a topic finds it there, and every command there exists."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import dedup
import dedup.errors
import dedup.sources.record_id
from dedup import sinks
from dedup.catalog.accepted_loss import accepted_loss_path
from dedup.catalog.certificate import Certificate
from dedup.cli.app import app
from dedup.cli.failures import DAMAGE, OK, USAGE
from dedup.cli.remedies import read_page
from dedup.errors import (
    LINK,
    CatalogError,
    ClockError,
    ConfigError,
    DataError,
    DedupError,
    ExecutorError,
    MissingExtraError,
    ObjectMissing,
    SegmentDamaged,
    StateError,
)
from dedup.sources import kafka
from dedup.storage.root import Root
from dedup.tools.watch.health import Status

PACKAGE = Path(dedup.__file__).parent
PAGE = (PACKAGE / "REMEDIES.md").read_text(encoding="utf-8")
SECTIONS = read_page()


def used() -> dict[str, set[str]]:
    """Topics that the package names, with the modules that do."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            topics: list[str] = []
            if isinstance(node, ast.keyword) and node.arg == "remedy":
                topics = [n.value for n in ast.walk(node.value) if _is_text(n)]
            elif _is_text(node):
                # Made where the package may be missing.
                topics = re.findall(rf"{LINK}([a-z-]+)", node.value)
            for topic in topics:
                found.setdefault(topic, set()).add(path.relative_to(PACKAGE).as_posix())
    return found


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_every_topic_has_a_section_and_every_section_is_used() -> None:
    concerns = (Status.STALLED, Status.LAGGING, Status.SHORTENED, Status.FUTURE, Status.LATE)
    found = used() | {status.lower(): {"tools/watch/health.py"} for status in concerns}
    assert "spark/driver/shipping.py" in found["executor-package"]
    assert len(found) >= 12
    assert set(found) == set(SECTIONS), found


def test_sections_are_short_and_say_what_is_promised() -> None:
    for topic, section in SECTIONS.items():
        assert re.fullmatch("[a-z-]+", topic)
        about, rest = section.split("\n\n", 1)
        assert "\n" not in about, f"{topic}: one line, then the rest"
        assert about.endswith("."), topic
        assert "Cost:" in rest or "Cost of" in rest, topic
        assert re.search("^1. |^- ", rest, re.MULTILINE), f"{topic}: no steps"
        assert len(section.split("\n")) < 60, topic


def test_topics_named_in_the_page_have_sections() -> None:
    """Names in backticks that look like topics are topics."""
    words = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", PAGE))
    assert words
    assert words <= set(SECTIONS)


def commands() -> list[str]:
    """Lines of the shell examples."""
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


def mentions() -> list[str]:
    """Commands in the midst of a sentence."""
    return sorted(set(re.findall(r"`(dedup [^`]+)`", PAGE)))


def parse(words: list[str], *, whole: bool) -> None:
    """Let the real command line parse it, without running it."""
    command: Any = get_command(app)
    context = None
    name = "dedup"
    while hasattr(command, "commands"):
        context = command.make_context(name, list(words[:1]), parent=context)
        name, command = words[0], command.commands[words[0]]
        words = words[1:]
    if whole:
        command.make_context(name, list(words), parent=context)
    else:
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known


@pytest.mark.parametrize("line", commands())
def test_examples_in_the_page_parse_as_commands(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "dedup"
    parse(words, whole=True)


@pytest.mark.parametrize("text", mentions())
def test_commands_mentioned_in_the_page_exist(text: str) -> None:
    words = shlex.split(text)[1:]
    if words == ["--version"]:
        return
    parse(words, whole=False)


def test_options_in_the_page_exist() -> None:
    """Also those that stand alone."""
    from inspect import signature

    from dedup import dedup_by_id, dedup_by_sequence
    from dedup.core.metrics import BatchMetrics
    from dedup.sinks.formats import sink_kinds

    command: Any = get_command(app)
    every = [*command.commands.values(), *command.commands["catalog"].commands.values()]
    flags = {flag for each in every for parameter in each.params for flag in parameter.opts}
    flags |= {flag for parameter in command.params for flag in parameter.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z-]+", PAGE)) <= flags
    known = {*signature(dedup_by_id).parameters, *BatchMetrics.__dataclass_fields__, "dedup_by_id"}
    known |= {*signature(dedup_by_sequence).parameters, "dedup_by_sequence"}
    known |= {
        "check_query",
        "record_id",
        "inheritable_thread_target",
        "monotonically_increasing_id",
    }
    known |= {
        *dedup.__all__,
        *sinks.__all__,
        *kafka.__all__,
        *dedup.record_id.__all__,
        *sink_kinds(),
    }
    known |= set(signature(dedup.kafka_records).parameters)
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)\b", PAGE))
    assert named
    assert named <= known


# --- errors


MADE = [
    ConfigError("text", remedy="changed-settings"), DataError("text", remedy="bad-records"),
    CatalogError("text", remedy="storage"), SegmentDamaged("text", remedy="damaged-segment"),
    ObjectMissing("text", remedy="missing-catalog"),
    ExecutorError("text", remedy="executor-package"), DedupError("text", remedy="output-folder"),
    StateError.damaged("text"), ClockError("text", remedy="clock"),
]  # fmt: skip


@pytest.mark.parametrize("error", MADE, ids=lambda error: f"{type(error).__name__}-{error.remedy}")
def test_the_message_ends_with_the_link(error: DedupError) -> None:
    assert str(error) == f"{error.text}\nRemedies: dedup remedies {error.remedy}"
    assert error.args == (error.text,)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert (str(again), again.remedy, again.args) == (str(error), error.remedy, error.args)


def test_without_a_topic_nothing_is_added() -> None:
    assert (str(ConfigError("text")), ConfigError("text").remedy) == ("text", None)
    assert str(DedupError()) == ""
    missing = MissingExtraError("spark", "It")
    again = pickle.loads(pickle.dumps(missing))
    assert (str(again), again.remedy) == (str(missing), None)
    assert LINK not in str(missing)


def test_one_error_in_another_has_one_link(tmp_path: Path) -> None:
    """Problems that verify lists are lines; the error that names a reason has its own link."""
    root = Root(tmp_path)
    root.put_bytes("q/certificate.json", b"{}")
    done = CliRunner().invoke(app, ["catalog", "verify", str(tmp_path)])
    assert done.exit_code == DAMAGE
    assert done.stderr.count(LINK) == 1
    with pytest.raises(CatalogError) as caught:
        Certificate.from_bytes(b"{}", "there")
    assert str(caught.value).endswith(f"\n{LINK}damaged-certificate")


# --- the command


def test_the_remedies_command_lists_all_topics() -> None:
    done = CliRunner().invoke(app, ["remedies"])
    assert done.exit_code == OK
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(SECTIONS)
    assert max(map(len, lines)) <= 100
    body = json.loads(CliRunner().invoke(app, ["remedies", "--json"]).stdout)
    assert body["topics"] == {name: text.split("\n")[0] for name, text in SECTIONS.items()}


def test_the_remedies_command_prints_a_section() -> None:
    done = CliRunner().invoke(app, ["remedies", "damaged-segment"])
    assert done.exit_code == OK
    assert done.stdout.strip() == SECTIONS["damaged-segment"]
    assert done.stdout.strip() in PAGE
    assert "dedup catalog accept-loss ROOT --segment NAME" in done.stdout
    body = json.loads(CliRunner().invoke(app, ["remedies", "clock", "--json"]).stdout)
    assert (body["topic"], body["text"]) == ("clock", SECTIONS["clock"])


@pytest.mark.parametrize(
    ("topic", "known"), [("damaged-segmnt", "did you mean damaged-segment"), ("x", "there are ")]
)
def test_an_unknown_topic_is_rejected_with_a_suggestion(topic: str, known: str) -> None:
    done = CliRunner().invoke(app, ["remedies", topic])
    assert done.exit_code == USAGE
    assert done.stderr.startswith(f"error: There is no topic {topic!r}; {known}")
    assert done.stdout == ""


def test_json_output_has_the_topic(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["catalog", "inspect", str(tmp_path), "--json"])
    body = json.loads(done.stdout)
    assert (body["error"], body["remedy"]) == ("ConfigError", "missing-catalog")
    assert LINK not in body["message"]
    assert done.stderr == f"error: {body['message']}\n{LINK}missing-catalog\n"
    done = CliRunner().invoke(app, ["remedies", "x", "--json"])
    assert "remedy" not in json.loads(done.stdout)
    assert accepted_loss_path("q", 0, "s").endswith(".accepted-loss"), "as damaged-segment has it"
