"""Reads records of JSON one by one. This defines their rows, and which records are bad."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from dedup.kernel.arrays import I64
from dedup.sources.files.json_text import BLANKS, deep_recursion, parsed
from dedup.sources.files.text_records import BadRecord, type_name
from dedup.sources.files.text_values import Lacks, Spelling, Unfit, structs

_BLANKS = BLANKS.encode()


class JsonRecords:
    """Reads lines, of which each is an object or an array of objects.

    Raises TypeError for a column with a type that JSON cannot hold.
    """

    def __init__(self, columns: pa.Schema, spelling: Spelling) -> None:
        self._columns = columns
        self._types = {c.name: type_name(c.type) for c in columns}
        self._fields: Callable[[Any], dict[str, Any]] = structs(pa.struct(list(columns)), spelling)

    def read(
        self, texts: Iterable[tuple[int, bytes]]
    ) -> tuple[pa.RecordBatch, I64, list[BadRecord]]:
        """Return the rows of lines, the offsets of their lines, and the bad records.

        `texts` are the offsets and texts of the lines. Lines of blanks have no rows. If some
        elements of an array are bad, the array is a bad record, and the others are rows.
        """
        values: list[list[Any]] = [[] for _ in self._columns]
        offsets, bad = [], []
        for offset, text in texts:
            if not text.strip(_BLANKS):
                continue
            reason = None
            try:
                value = parsed(text)
            except Unfit as error:
                reason, value = str(error), []
            for record in value if type(value) is list else [value]:
                try:
                    row = self._row(record)
                except Unfit as error:
                    reason = reason or str(error)
                else:
                    offsets.append(offset)
                    for column, one in zip(values, row.values(), strict=True):
                        column.append(one)
            if reason is not None:
                bad.append(BadRecord(offset, text, reason))
        arrays = list(map(pa.array, values, self._columns.types))
        good = pa.RecordBatch.from_arrays(arrays, schema=self._columns)
        return good, np.array(offsets, np.int64), bad

    def _row(self, record: Any) -> dict[str, Any]:
        if type(record) is not dict:
            raise Unfit("It is JSON, but not an object.")
        try:
            try:
                return self._fields(record)
            except RecursionError:
                with deep_recursion():
                    return self._fields(record)
        except Lacks as error:
            path = ".".join(error.args)
            raise Unfit(f"Field {path} is missing or null, and the schema needs it.") from None
        except Unfit as error:
            (name,) = error.args
            raise Unfit(f"Field {name} does not fit {self._types[name]}.") from None
