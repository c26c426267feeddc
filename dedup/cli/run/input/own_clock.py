"""What it means that no `--timestamp` is given, and which columns could be one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dedup.cli.run.run_options import RunOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Names that texts and numbers with an event time usually have.
_TIME_NAME = re.compile(
    r"(?:.*_)?(?:at|on|ts|t|time|timestamp|date|datetime|when|created|updated|occurred|received)"
    r"(?:_(?:at|on|ts|time|utc))?|.*[a-z](?:At|On|Time|Timestamp|Date)"
)


def time_columns(schema: StructType, ids: tuple[str, ...]) -> list[str]:
    """Names of columns that are times, then of texts and numbers that are named like one."""
    from pyspark.sql.types import (
        DateType,
        LongType,
        StringType,
        TimestampNTZType,
        TimestampType,
    )  # fmt: skip

    keys = {name.lower() for name in ids}
    fields = [field for field in schema.fields if field.name.lower() not in keys]
    typed = [f.name for f in fields if isinstance(f.dataType, (TimestampType, TimestampNTZType))]
    named = [
        field.name
        for field in fields
        if isinstance(field.dataType, (StringType, DateType, LongType))
        and (_TIME_NAME.fullmatch(field.name) or _TIME_NAME.fullmatch(field.name.lower()))
    ]
    return typed + named


def own_clock(options: RunOptions, schema: StructType) -> str | None:
    """Say how the horizon is measured without `--timestamp`, None where one is given."""
    if options.timestamp is not None:
        return None
    explanation = (
        "The horizon is measured by this run's own clock, because no --timestamp is given: all "
        "files of one run are de-duplicated as if they had come at once, however old their records "
        "are, and an ID passes again in a run that comes later than the horizon."
    )
    found = time_columns(schema, options.id)
    if not found:
        return explanation
    verb = "looks" if len(found) == 1 else "look"
    return (
        f"{explanation} {', '.join(map(repr, found[:3]))} {verb} like the time of an event: "
        f"--timestamp {found[0]} would measure by it."
    )
