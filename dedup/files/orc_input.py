"""ORC, where pyarrow reads it with the meaning that it has for Spark.

ORC's times count from 2015 in the zone of their writer, and Java reads them as the same time of
day in its own zone; pyarrow has them as nanoseconds, which end in 2262; dates are in two calendars.
So the footer must tell that no value is one of those that the two read differently, or Spark reads
the file (ORC specification v1; SPARK-31238 for the calendars).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.orc as orc

from dedup.files import orc_tail
from dedup.files.exact_values import check_whole, leaves, named
from dedup.files.input_file import BATCH_BYTES, BATCH_ROWS, Part, alike, positions, repeated_name

#: Names of the zone in which a time of day is an instant of the same name.
UTC_NAMES = frozenset(
    {"UTC", "GMT", "UCT", "Zulu", "Universal", "Greenwich", "GMT0",
     "Etc/UTC", "Etc/GMT", "Etc/UCT", "Etc/Zulu", "Etc/Universal", "Etc/Greenwich", "Etc/GMT0"}
)  # fmt: skip
#: First day of today's calendar, in days since 1970.
_FIRST_DAY = -141_427
#: Of times before 1970 Java's writer loses a second here and there, depending on the zone, and a 0
#: may be one of them, cut to milliseconds. pyarrow's times end in April 2262.
_FIRST_MS, _LAST_MS = 1, 9_214_646_400_000
#: pyarrow reads a stripe in one go, so that a task holds it whole.
_STRIPE_BYTES = 512 << 20


class OrcInput:
    """An ORC file, as `dedup.files.input_file.InputFile` has it; its parts are stripes."""

    def __init__(self, path: str) -> None:
        self._source = pa.OSFile(path)
        try:
            self._file = orc.ORCFile(self._source)
            self._tail = orc_tail.OrcTail.of(self._file.reader.serialized_file_tail())
            if len(self._tail.columns[0].below) != len(self.schema):
                raise pa.ArrowInvalid("its columns are not those of its footer")
        except BaseException:
            self._source.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._source.close()

    @cached_property
    def schema(self) -> pa.Schema:
        """All columns."""
        return self._file.schema

    @cached_property
    def parts(self) -> list[Part]:
        """The stripes; Spark passes over rows without a column."""
        stripes = self._tail.stripes if self.schema.names else ()
        return [Part(stripe.begin, stripe.rows) for stripe in stripes]

    def misfit(self, columns: pa.Schema) -> str | None:
        """Say what only Spark reads as it means it; None where pyarrow may read the columns."""
        names = self.schema.names
        if self._tail.is_encrypted:
            return "some of its columns are encrypted"
        if names and all(name.startswith("_col") for name in names):
            return "its columns have no names, as Hive once wrote them"
        if "`" in self.schema.to_string(show_field_metadata=False, show_schema_metadata=False):
            return "a name in it has a backtick, from which on Java's reader may drop the rest"
        repeated = repeated_name(self.schema, columns)
        if repeated is not None:
            return repeated
        read: list[orc_tail.OrcColumn] = []
        for wanted in columns:
            for place in positions(self.schema, wanted.name):
                if any(names[place].startswith(f"{other}.") for other in names):
                    return f"its column {names[place]!r} may be taken for a field of another one"
                found = list(self._tail.within(self._tail.columns[0].below[place]))
                why = self._unlike(self.schema.field(place), wanted.type, found)
                if why is not None:
                    return f"its column {names[place]!r} {why}"
                read += found
        why = self._zone_fault({column.kind for column in read})
        if why is not None:
            return why
        nbytes = self._tail.stripe_bytes(read)
        if nbytes is None:
            return "its footer does not tell how large its values are"
        if nbytes > _STRIPE_BYTES:
            return f"a stripe of it takes {nbytes >> 20} MiB in memory"
        return None

    def unread_by_spark(self, columns: pa.Schema) -> str | None:
        """Refuse times that Spark would cut; errors as `InputFile` says."""
        times = {orc_tail.TIMESTAMP, orc_tail.INSTANT}
        for wanted in columns:
            for place in positions(self.schema, wanted.name):
                found = self._tail.within(self._tail.columns[0].below[place])
                kinds = {column.kind for column in found}
                # Null as a key of a map would make pyarrow end the process.
                if not kinds & times or orc_tail.MAP in kinds:
                    continue
                name = self.schema.names[place]
                for part in range(self._file.nstripes):
                    for values in leaves(self._file.read_stripe(part, [name]).column(0)):
                        if pa.types.is_timestamp(values.type):
                            with named(name):
                                check_whole(values)
        return None

    def batches(self, part: int, places: list[int]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of a stripe, a bounded number of bytes at a time."""
        # Without a column pyarrow would lose count of the rows.
        names = [self.schema.names[place] for place in places]
        stripe = self._file.read_stripe(part, columns=names or self.schema.names[:1]).select(names)
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES * stripe.num_rows // max(1, stripe.nbytes)))
        for begin in range(0, stripe.num_rows, rows):
            yield stripe.slice(begin, rows)

    def _unlike(
        self, field: pa.Field, wanted: pa.DataType, found: list[orc_tail.OrcColumn]
    ) -> str | None:
        """Say why the values of a column may be other ones for Spark."""
        if not alike(field, wanted, _likeness):
            return f"is {field.type}, where {wanted} is expected"
        for column in found:
            if column.kind in (orc_tail.CHAR, orc_tail.VARCHAR):
                return "holds texts of a fixed or limited length"
            keys = column.below[:1] if column.kind == orc_tail.MAP else ()
            if any(self._tail.columns[key].has_nulls for key in keys):
                # It would make pyarrow end the process.
                return "holds maps with null as a key, or nothing tells that there are none"
            if column.kind == orc_tail.DATE and not _is_within(column, _FIRST_DAY, None):
                return "holds dates of before 1582, or nothing tells that there are none"
            if column.kind in (orc_tail.TIMESTAMP, orc_tail.INSTANT) and not _is_within(
                column, _FIRST_MS, _LAST_MS
            ):
                return "holds times outside 1970 to 2261, or nothing tells that there are none"
        return None

    def _zone_fault(self, kinds: set[int]) -> str | None:
        """Say why times cannot be read, or times of day are not those of UTC."""
        if kinds & {orc_tail.TIMESTAMP, orc_tail.INSTANT} and not _is_installed("GMT"):
            return f"{_zones()} has no time zones (tzdata), and pyarrow needs them for its times"
        for stripe in self._tail.stripes if orc_tail.TIMESTAMP in kinds else ():
            self._source.seek(stripe.footer)
            zone = self._tail.zone(self._source.read(stripe.footer_bytes))
            if zone is None:
                return "it does not tell in which time zone its times were written"
            if zone not in UTC_NAMES:
                return f"its times were written in the time zone {zone}"
            if not _is_installed(zone):
                # Some of the names come in a package of their own (tzdata-legacy).
                return f"{_zones()} lacks the time zone {zone}, by which its times were written"
        return None


def columns_before_1970(path: str) -> list[str]:
    """Return the columns that may hold times before 1970."""
    times = (orc_tail.TIMESTAMP, orc_tail.INSTANT)
    with OrcInput(path) as file:
        tail = file._tail
        return [
            name
            for name, number in zip(file.schema.names, tail.columns[0].below, strict=True)
            if any(c.kind in times and not _is_within(c, 0, None) for c in tail.within(number))
        ]


def _zones() -> Path:
    return Path(os.environ.get("TZDIR", "/usr/share/zoneinfo"))


def _is_installed(zone: str) -> bool:
    return (_zones() / zone).exists()


def _is_within(column: orc_tail.OrcColumn, first: int, last: int | None) -> bool:
    if not column.values and column.nbytes is not None:
        return True
    if column.least is None or column.most is None:
        return False
    return first <= column.least and (last is None or column.most <= last)


def _likeness(column: pa.Field, wanted: pa.DataType) -> bool:
    """Whether a cast of a column that is not nested gives the values that Spark reads."""
    found = column.type
    if pa.types.is_timestamp(wanted) and wanted.tz is not None:
        return found in (pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
    if pa.types.is_timestamp(wanted):
        # Without a zone Spark writes them as numbers, and says so.
        noted = column.metadata or {}
        return found == pa.int64() and noted.get(b"spark.sql.catalyst.type") == b"timestamp_ntz"
    return bool(found == wanted)
