"""Check the columns of a stream before a query starts. Several sinks use these checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dedup.errors import ConfigError


class Unsuitable(Exception):
    """A Spark column or value does not fit a column of the output. The message gives the reason."""


def refuse_twins(names: Iterable[str]) -> None:
    """Raise ConfigError if two columns have the same name, regardless of case."""
    seen = set()
    for name in names:
        if name.lower() in seen:
            raise ConfigError(
                f"The stream has two columns of the name {name!r}, or names that differ in case "
                "alone, which readers could not distinguish: rename one of them."
            )
        seen.add(name.lower())


def check_names(table: str, there: Mapping[str, bool], names: Sequence[str]) -> None:
    """Raise ConfigError if a stream's columns do not fit a table.

    The table must have every column in `names`, and the stream must have every column that the
    table requires. `there` maps each column of the table to True if the table requires it.
    """
    for name in names:
        if name not in there:
            near = [other for other in there if other.lower() == name.lower()]
            hint = repr(near[0]) if near else ", ".join(list(there)[:20])
            raise ConfigError(
                f"Table {table} has no column {name!r}; it has {hint}. Rename or drop the column "
                "of the stream, or add it to the table."
            )
    for name, is_needed in there.items():
        if is_needed and name not in names:
            raise ConfigError(
                f"Column {name!r} of table {table} must have a value, and the stream has no such "
                "column. Add it to the stream, or give the column a default."
            )
