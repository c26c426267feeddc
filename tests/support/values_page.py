"""The tables of dedup/cli/VALUES.md: what each format keeps and rejects, as examples to try."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import dedup

_PAGE = Path(dedup.__file__).parent / "cli" / "VALUES.md"
_KEPT = re.compile("`([^`]+)` → `([^`]*)`")
_ONE = re.compile("`([^`]+)`")


class Row(NamedTuple):
    """What a column of one type does.

    Parameters
    ----------
    kind : str
        As DDL.
    kept : list of (str, str)
        A text of the input, and the value as Spark casts it to STRING.
    rejected : list of str
    """

    kind: str
    kept: list[tuple[str, str]]
    rejected: list[str]


def table(name: str) -> list[Row]:
    """Return the rows of the table behind ``<!-- values NAME -->``."""
    text = _PAGE.read_text(encoding="utf-8").partition(f"<!-- values {name} -->\n")[2]
    lines = text.partition("\n\n")[0].splitlines()[2:]
    assert lines, name
    rows = []
    for line in lines:
        kind, kept, rejected = line.strip("|").split("|")
        (ddl,) = _ONE.findall(kind)
        rows.append(Row(ddl, _KEPT.findall(kept), _ONE.findall(rejected)))
    return rows
