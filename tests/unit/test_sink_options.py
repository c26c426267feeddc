"""The table of options in a sink's page against the declarations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dedup
from dedup.core.option import REQUIRED, Option
from dedup.sinks.kafka import options as kafka
from dedup.sinks.lakehouse import options as lakehouse
from dedup.sinks.postgres import options as postgres

SINKS = Path(dedup.__file__).parent / "sinks"
DECLARED: dict[str, tuple[tuple[Option, ...], ...]] = {
    "kafka": (kafka.OPTIONS,),
    "lakehouse": tuple(lakehouse.OPTIONS.values()),
    "postgres": (postgres.OPTIONS,),
}


@pytest.mark.parametrize("sink", DECLARED)
def test_the_page_lists_every_option_with_its_default(sink: str) -> None:
    table = (SINKS / sink / "README.md").read_text().split("## Options\n\n")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `([a-z.]+)` \| ([^|]*)\|", table, re.MULTILINE))
    options = [option for group in DECLARED[sink] for option in group]
    assert set(rows) == {option.name for option in options}
    for option in options:
        if option.default not in (None, (), REQUIRED):
            shown = option.default if isinstance(option.default, str) else str(option.default)
            assert shown.lower() in rows[option.name], option.name
