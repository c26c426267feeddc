"""Finds the columns of CSV and JSON, with types that hold all values of some files.

A column of CSV has a type only if all texts come back from their values, as `dedup run` writes
them. Times may come back in another spelling. So all times of a column must be spelled alike, digit
for digit, in UTC, so that different texts are different times.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from dedup.cli.run.job import Job
from dedup.cli.stop import StopRequest
from dedup.errors import ConfigError
from dedup.sinks.files.query import SPLIT_BYTES
from dedup.sinks.files.text_lines import texts_of
from dedup.sources.files.csv_input import CsvFormat
from dedup.sources.files.json_input import JsonFormat
from dedup.sources.files.json_types import KINDS, TEXT, JsonTypes, Shape, column_type, merged
from dedup.sources.files.scan import good_rows
from dedup.sources.files.text_columns import converted
from dedup.sources.files.text_input import PACKED
from dedup.sources.files.text_options import header_of, text_format
from dedup.sources.files.text_values import Spelling, from_text
from dedup.spark.driver import checks

#: Whole numbers that one of these types holds are also in the next one.
_WHOLE = ("int", "bigint", "decimal(38,0)")
_TIMES = ("date", "timestamp")
#: The spellings of times without a pattern.
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3}(?:[0-9]{3})?)?Z?"
_ISO = {"date": re.compile(_DAY), "timestamp": re.compile(f"{_DAY}[ T]{_CLOCK}")}
#: What may be in the place of a character, by its category of Unicode.
_CLASSES = {"Nd": "[0-9]", "Ll": "[a-z]", "Lu": "[A-Z]"}


class Inference:
    """Reads all values of files of text, in threads. A request to `stop` ends a reading.

    Without `skips_bad`, a bad record raises DataError.
    """

    def __init__(
        self, spark: SparkSession, job: Job, stop: StopRequest | None, *, skips_bad: bool
    ) -> None:
        self._job, self._stop, self._skips_bad = job, stop, skips_bad
        self._options = dict(job.options.read_options)
        self._infers = job.options.infer or job.files.file_format == "json"
        times = T.StructType([T.StructField(name, from_arrow_type(KINDS[name])) for name in _TIMES])
        self._format = text_format(
            times if job.options.infer else T.StructType(),
            job.files.file_format,
            self._options,
            checks.time_zone(spark),
        )

    @property
    def reads_headers(self) -> bool:
        """Whether the columns of a file have the names in its header."""
        form = self._format
        return isinstance(form, CsvFormat) and form.has_header and not form.ignores_header

    def header(self, path: Path) -> list[str]:
        """Return what `header_of` returns."""
        return header_of(path, self._options)

    def shapes(self, paths: Sequence[Path], names: Sequence[str] = ()) -> list[Shape]:
        """Return the shape of each file. The columns of CSV have their names in lower case.

        `names` are the columns of CSV if no header tells them. Raises KeyboardInterrupt or
        DataError.
        """
        if not self._infers:
            return [{}] * len(paths)
        parts = [(path, at, n) for path in paths for n in [self._count(path)] for at in range(n)]
        found: dict[Path, Shape] = dict.fromkeys(paths)
        failed = StopRequest()
        with ThreadPoolExecutor(self._job.options.cores) as pool:
            try:
                each = pool.map(partial(self._shape, names, (failed, self._stop or failed)), parts)
                for (path, _, _), shape in zip(parts, each, strict=True):
                    found[path] = merged(found[path], shape)
            except BaseException:
                failed.set()
                raise
        return list(found.values())

    def columns(self, shapes: Iterable[Shape], names: Sequence[str] | None = None) -> T.StructType:
        """Return columns with these names, or with all names in their order."""
        nothing: Shape = {}
        found = reduce(merged, shapes, nothing)
        if not isinstance(found, dict):
            raise ConfigError("INPUT has more than 10,000 columns; give --schema with fewer.")
        ids, columns = {name.lower() for name in self._job.options.id}, T.StructType()
        for name in sorted(found) if names is None else names:
            key = name.lower()
            # A column that folders name too has their values, which are text.
            is_folder = key in self._job.files.partitions
            shape = None if is_folder else found.get(name if names is None else key)
            columns.add(name, column_type(shape, is_id=key in ids))
        return columns

    def _count(self, path: Path) -> int:
        """Return into how many parts a file is divided."""
        if re.search(PACKED, path.name) or not self._format.is_divisible:
            return 1
        return max(1, min(2 * self._job.options.cores, path.stat().st_size // SPLIT_BYTES))

    def _shape(
        self, names: Sequence[str], stops: Sequence[StopRequest], part: tuple[Path, int, int]
    ) -> Shape:
        path, number, count = part
        form: CsvFormat | JsonTypes
        if isinstance(self._format, JsonFormat):
            form = JsonTypes(self._format)
        else:
            if self.reads_headers:
                names = self.header(path)
            if not names:
                return {}
            form = replace(self._format, columns=pa.schema([(name, pa.string()) for name in names]))
        found = dict[str, Any]()
        for rows in good_rows(path, form, number, count, skips_bad=self._skips_bad):
            if any(stop.is_set() for stop in stops):
                raise KeyboardInterrupt
            for name, texts in zip(rows.schema.names, rows.columns, strict=True):
                known = found.get(name.lower())
                found[name.lower()] = types_of(texts, form.spelling, known)
        return form.records.shape if isinstance(form, JsonTypes) else found


def types_of(
    texts: pa.StringArray, spelling: Spelling, known: frozenset[str] | None = None
) -> frozenset[str] | None:
    """Return the names of the types from which all texts come back, of those in `known`.

    None means all types, and is the result if there are only nulls.
    """
    texts = texts.drop_null()
    if not len(texts) or known == TEXT:
        return known
    kept = {name.partition(" ")[0]: name for name in known or KINDS}
    for some in (texts[:1], texts):  # most types do not hold the first text
        names, kept = kept, {}
        for name in (name for name in KINDS if name in names):
            if name in _WHOLE and kept:
                kept[name] = name
            elif (spelled := _come_back(some, name, spelling)) is not None:
                kept[name] = spelled
    found = frozenset(kept.values())
    return found if known is None else found.intersection(known)


def _come_back(texts: pa.StringArray, name: str, spelling: Spelling) -> str | None:
    """Return the name of a type from which all texts come back, or None.

    Behind the name of a type of times is the spelling that all texts have.
    """
    kind, form = KINDS[name], ""
    if name in _TIMES and not (form := _form(texts, name, spelling)):
        return None
    values, unfit = converted(texts, kind, from_text(kind, spelling), spelling)
    if unfit or not (form or pc.all(pc.equal(texts_of(values, name), texts)).as_py()):
        return None
    return f"{name} {form}".strip()


def _form(texts: pa.StringArray, name: str, spelling: Spelling) -> str:
    """Return a regular expression for the digits and letters of all times, or ""."""
    first, pattern = texts[0].as_py(), spelling.pattern(KINDS[name])
    is_good = first.endswith("Z") or name == "date" or spelling.zone is UTC
    if pattern is None:
        is_good &= _ISO[name].fullmatch(first) is not None
    else:
        with suppress(ValueError):
            is_good &= first.endswith("Z") or pattern.parsed(first)[1] is None
    form = "".join(_CLASSES.get(unicodedata.category(one), re.escape(one)) for one in first)
    is_good = is_good and pc.all(pc.match_substring_regex(texts, f"^{form}$")).as_py()
    return form if is_good else ""
