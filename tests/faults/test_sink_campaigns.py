"""The campaigns against the sinks, in short forms, and how their engine judges."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from tests.databases.mysql_server import need_mysql
from tests.databases.postgres_server import need_postgres
from tests.files_sink.campaign import POINTS as FILES
from tests.redis.server import need_server as need_redis
from tests.support.kafka_needs import need_broker, need_library
from tests.support.needs import long
from tests.support.processes import python
from tests.support.sink_campaign import Round, steps, table

PLACE = "kafka.rows.first kill"
DATABASES = ("postgres", "mysql")
#: The name of each campaign, the prefix of its sink's steps, and a seed with both kinds of mode.
CAMPAIGNS = {
    "postgres": ("kit.", 121), "files_sink": ("files.", 1), "lakehouse": ("lakehouse.", 1),
    "kafka": ("kafka.", 1), "mysql": ("kit.", 1), "redis": ("kit.", 1), "kit": ("kit.", 5),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kills"),
    [("postgres", 8), *(long(name, 8) for name in CAMPAIGNS if name != "postgres"),
     *(long(name, 300) for name in CAMPAIGNS)],
)  # fmt: skip
@pytest.mark.timeout(1800)
def test_every_row_is_published_once_whatever_is_killed(name: str, kills: int) -> None:
    if name == "kafka":
        need_library()
        need_broker()
    if name == "postgres":
        need_postgres()
    if name == "mysql":
        need_mysql()
    if name == "redis":
        need_redis()
    prefix, seed = CAMPAIGNS[name]
    module = (
        ("tests.databases.campaign", name) if name in DATABASES else (f"tests.{name}.campaign",)
    )
    done = python("-m", *module, "--kills", kills, "--seed", seed, timeout_s=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    rounds = [line for line in lines if line.startswith("seed ")]
    assert all(re.search(r"(\d+) of \1 faults fired", line) for line in rounds), rounds
    struck = re.findall(
        rf"^\| `{prefix}[\w.]+` \| kill \| (\d+) \| \1 \| 0 \| 0 \|$", done.stdout, re.M
    )
    assert sum(map(int, struck)) >= kills
    assert lines[-1].endswith(": 0 lost, 0 duplicated.")


def test_the_campaign_of_files_kills_at_every_step_of_the_sink() -> None:
    """`dedup run` passes one point more. The other campaigns take all steps of their sinks."""
    assert {*steps("files.")} - {"files.collected"} == {*FILES}


@pytest.mark.parametrize(
    ("harm", "fine"),
    [({}, True), ({"lost": 1}, False), ({"duplicated": 1}, False),
     ({"seen_wrong": "a reader saw [7] twice"}, False)],
)  # fmt: skip
def test_harm_and_faults_that_did_not_fire_fail_a_round(harm: dict[str, Any], fine: bool) -> None:
    found = Round(1, "atomic", {}, armed=Counter([PLACE]), fired=Counter([PLACE]), **harm)
    assert found.fine == fine
    found.fired.clear()
    assert not found.fine, "a fault that did not fire proves nothing"
    assert "not fired" in found.line


def test_rounds_are_summed() -> None:
    rounds = [
        Round(number, "atomic", {}, armed=Counter({PLACE: 3}), fired=Counter({PLACE: 2 + number}),
              rows=1000)
        for number in range(2)
    ]  # fmt: skip
    told = table(rounds, ["kafka.rows.first"])
    assert "| `kafka.rows.first` | kill | 6 | 5 | 0 | 0 |" in told
    assert "2 queries, 0 starts, 2,000 rows: 5 kills" in told
