"""Finds the columns of CSV and JSON, with types that hold all values of some files.

A column of CSV has a type only if all texts come back from their values, as `dedup run` writes
them. Times may come back in another spelling. So all times of a column must be spelled alike, digit
for digit, in UTC, so that different texts are different times.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from functools import cached_property, reduce
from itertools import filterfalse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_type

from dedup.cli.run.input.files import Stamp
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
    """Reads all values of files of text, in threads.

    `time_zone` is the session's time zone. A request to `stop` ends a reading with
    KeyboardInterrupt.
    """

    def __init__(self, job: Job, time_zone: str, stop: StopRequest | None = None) -> None:
        self._job, self._time_zone, self._stop = job, time_zone, stop or StopRequest()
        self._options = dict(job.options.read_options)
        self._infers = job.options.infer or job.files.file_format == "json"
        #: Whether the columns of the output come from the files.
        self._is_first = job.record is None and job.options.schema is None
        self._skips_bad = job.options.bad_records != "error" or not self._is_first
        self._pool = ThreadPoolExecutor(job.options.cores)
        self._closed = StopRequest()
        #: For each file that is read in the background, its stamp when it began, and its parts.
        self._begun: dict[Path, tuple[Stamp, list[Future[Shape]]]] = {}

    def begin(self, new: Iterable[str]) -> None:
        """Begin to read the files whose values the run will need, while Spark starts.

        `new` are the files that earlier runs have not read.
        """
        if self._job.files.file_format == "json" or (self._infers and self._is_first):
            self._begin(map(Path, new), self._first_names() or ())

    def close(self) -> None:
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    @cached_property
    def _format(self) -> CsvFormat | JsonFormat:
        times = T.StructType([T.StructField(name, from_arrow_type(KINDS[name])) for name in _TIMES])
        return text_format(
            times if self._job.options.infer else T.StructType(),
            self._job.files.file_format,
            self._options,
            self._time_zone,
        )

    @property
    def reads_headers(self) -> bool:
        """Whether the columns of a file have the names in its header."""
        form = self._format
        return isinstance(form, CsvFormat) and form.has_header and not form.ignores_header

    def header(self, path: Path) -> list[str]:
        return header_of(path, self._options)

    def shapes(self, paths: Sequence[Path], names: Sequence[str] = ()) -> list[Shape]:
        """Return the shape of each file. The columns of CSV have their names in lower case.

        `names` are the columns of CSV if no header tells them. Raises KeyboardInterrupt or
        DataError.
        """
        if not self._infers:
            return [{}] * len(paths)
        self._begin(filterfalse(self._is_begun, paths), names)
        parts = [self._begun.pop(path)[1] for path in paths]
        return [reduce(merged, (part.result() for part in each), None) for each in parts]

    def first_columns(self) -> T.StructType:
        paths, names = self._job.files.paths, self._first_names()
        return self.columns(self.shapes(paths, names or ()), names)

    def _first_names(self) -> list[str] | None:
        """Return the columns of CSV, from the oldest file with records, or None for JSON."""
        if self._job.files.file_format == "json":
            return None
        return next(filter(None, map(self.header, self._job.files.paths)), [])

    def columns(self, shapes: Iterable[Shape], names: Sequence[str] | None = None) -> T.StructType:
        """Return columns with these names, or with all names in their order."""
        nothing: Shape = {}
        by_name = reduce(merged, shapes, nothing)
        if not isinstance(by_name, dict):
            raise ConfigError("INPUT has more than 10,000 columns; give --schema with fewer.")
        ids, columns = {name.lower() for name in self._job.options.id}, T.StructType()
        for name in sorted(by_name) if names is None else names:
            key = name.lower()
            # A column that folders name too has their values, which are text.
            is_folder = key in self._job.files.partitions
            shape = None if is_folder else by_name.get(name if names is None else key)
            columns.add(name, column_type(shape, is_id=key in ids))
        return columns

    def _begin(self, paths: Iterable[Path], names: Sequence[str]) -> None:
        for path in paths:
            stamp, count = Stamp.of(path), self._count(path)
            self._begun[path] = (
                stamp,
                [self._pool.submit(self._shape, names, path, n, count) for n in range(count)],
            )

    def _is_begun(self, path: Path) -> bool:
        return path in self._begun and self._begun[path][0] == Stamp.of(path)

    def _count(self, path: Path) -> int:
        """Return into how many parts a file is divided."""
        if re.search(PACKED, path.name) or not self._format.is_divisible:
            return 1
        return max(1, min(2 * self._job.options.cores, path.stat().st_size // SPLIT_BYTES))

    def _shape(self, names: Sequence[str], path: Path, number: int, count: int) -> Shape:
        form: CsvFormat | JsonTypes
        if isinstance(self._format, JsonFormat):
            form = JsonTypes(self._format)
        else:
            if self.reads_headers:
                names = self.header(path)
            if not names:
                return {}
            form = replace(self._format, columns=pa.schema([(name, pa.string()) for name in names]))
        by_name = dict[str, Any]()
        for rows in good_rows(path, form, number, count, skips_bad=self._skips_bad):
            if self._stop.is_set() or self._closed.is_set():
                raise KeyboardInterrupt
            for name, texts in zip(rows.schema.names, rows.columns, strict=True):
                known = by_name.get(name.lower())
                by_name[name.lower()] = types_of(texts, form.spelling, known)
        return form.records.shape if isinstance(form, JsonTypes) else by_name


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
    types = frozenset(kept.values())
    return types if known is None else types.intersection(known)


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
