"""How the options of `dedup run` say that tasks read CSV and JSON."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from dedup.cli.run.input.files import folded, is_true, separator
from dedup.errors import ConfigError, DataError
from dedup.sources.files.bypass import LeftToSpark, text_schema
from dedup.sources.files.csv_input import CsvFormat, CsvReader
from dedup.sources.files.csv_records import CsvForm
from dedup.sources.files.exact_values import unreadable
from dedup.sources.files.json_input import JsonFormat
from dedup.sources.files.scan import TextSource
from dedup.sources.files.text_input import TextInput
from dedup.sources.files.text_records import Unreadable
from dedup.sources.files.text_values import Spelling, from_json, from_text
from dedup.sources.files.time_pattern import zone_of
from dedup.spark.driver import checks

if TYPE_CHECKING:
    from dedup.cli.run.job import Job

#: Options of Spark's readers that tasks honour, by format, with their names in lower case.
_OF_BOTH = {
    "encoding", "charset", "linesep", "locale", "timezone", "dateformat", "timestampformat",
    "timestampntzformat",
}  # fmt: skip
_HONOURED = {
    "csv": _OF_BOTH | {
        "sep", "delimiter", "header", "enforceschema", "quote", "escape", "comment", "nullvalue",
        "emptyvalue", "ignoreleadingwhitespace", "ignoretrailingwhitespace", "nanvalue",
        "positiveinf", "negativeinf",
    },
    "json": _OF_BOTH | {"multiline"},
}  # fmt: skip
#: Options that change nothing, because what they allow is always allowed.
NEEDLESS = {"csv": {"multiline"}, "json": set[str]()}
#: Options that choose files.
OF_FILES = {
    "basepath", "filenameonly", "latestfirst", "maxfileage", "modifiedafter", "modifiedbefore",
    "pathglobfilter", "recursivefilelookup",
}  # fmt: skip
_INSTEAD = {
    "mode": "--bad-records decides about records that cannot be read",
    "columnnameofcorruptrecord": "--bad-records DIR keeps records that cannot be read",
    "unescapedquotehandling": "a quote within a value must be written twice",
    "inferschema": "give --infer",
    "samplingratio": "all records are read to find the columns; give --schema to read none",
    "primitivesasstring": "give --schema with the columns as STRING",
    "prefersdecimal": "give --schema with the columns as DECIMAL",
    "prefersdate": "give --schema",
    "dropfieldifallnull": "give --schema without these columns",
    "singlevariantcolumn": "give --schema",
    "maxfilespertrigger": "give --files-per-trigger",
    "compression": "the suffix of a file says how it is compressed",
}


def check_read_options(read_options: Mapping[str, str], file_format: str) -> None:
    """Raise ConfigError for an option of Spark's reader that tasks do not honour."""
    for name, value in read_options.items():
        lower = name.lower()
        if lower in _HONOURED[file_format] | NEEDLESS[file_format] | OF_FILES:
            continue
        way = _INSTEAD.get(lower)
        if lower.startswith("allow") and file_format == "json":
            way = "the text must be strict JSON"
        raise ConfigError(
            f"--read-option {name}={value} has no meaning for {file_format.upper()}"
            f"{'' if way is None else f': {way}'}. Leave it out.",
            remedy="bad-records",
        )
    given = folded(read_options)
    for name in ("encoding", "charset"):
        try:
            codecs.lookup(given.get(name, "UTF-8"))
        except LookupError:
            raise ConfigError(
                f"--read-option {name}={given[name]} is no encoding that is known; give one such "
                "as UTF-8, UTF-16 or ISO-8859-1."
            ) from None


def spelling(spark: SparkSession, read_options: Mapping[str, str]) -> Spelling:
    """Return how dates, times and numbers are spelled. Raises ConfigError."""
    given = folded(read_options)
    is_english = given.get("locale", "en").lower().startswith("en")
    zone = given.get("timezone") or session_zone(spark)
    try:
        zone_of(zone)
    except ValueError:
        raise ConfigError(
            f"The time zone {zone} is not known; give a name such as Europe/Berlin, or an offset "
            "such as +02:00, by --read-option timeZone=... or spark.sql.session.timeZone."
        ) from None
    return Spelling(
        time_zone=zone,
        date=given.get("dateformat"),
        timestamp=given.get("timestampformat"),
        timestamp_ntz=given.get("timestampntzformat"),
        nan=given.get("nanvalue", "NaN"),
        positive_inf=given.get("positiveinf", "Inf"),
        negative_inf=given.get("negativeinf", "-Inf"),
        # A comma separates thousands only in English. Elsewhere it may be the decimal sign.
        has_groups=is_english and separator(given) != ";",
    )


def session_zone(spark: SparkSession) -> str:
    return checks.setting(spark, "spark.sql.session.timeZone", "UTC")


def _csv_form(given: Mapping[str, str]) -> CsvForm:
    quote = given.get("quote", '"')
    return CsvForm(
        separator=separator(given),
        quote=quote,
        escape=given.get("escape", quote),
        comment=given.get("comment", ""),
        line_end=given.get("linesep", ""),
        null=given.get("nullvalue", ""),
        empty=given.get("emptyvalue", ""),
        trims_left=is_true(given, "ignoreleadingwhitespace"),
        trims_right=is_true(given, "ignoretrailingwhitespace"),
    )


def csv_options(read_options: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `CsvFormat` that say how files are divided into values."""
    given = folded(read_options)
    return {
        "form": _csv_form(given),
        "encoding": _encoding(given),
        "has_header": given.get("header", "true").lower() == "true",
        "ignores_header": is_true(given, "enforceschema"),
    }


def json_options(read_options: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `JsonFormat` that say how files are divided into records."""
    given = folded(read_options)
    return {
        "encoding": _encoding(given),
        "line_end": given.get("linesep", "").encode(),
        "is_whole": is_true(given, "multiline"),
    }


def _encoding(given: Mapping[str, str]) -> str:
    return given.get("encoding", given.get("charset", "UTF-8"))


def header_of(path: Path, read_options: Mapping[str, str]) -> list[str]:
    """Return the names in a file's header. A file without records has none.

    Raises DataError, OSError or pyarrow.ArrowException.
    """
    options = csv_options(read_options)
    text_format = CsvFormat(columns=pa.schema([]), spelling=Spelling(), **options)
    try:
        with TextInput(path, text_format) as file:
            reader = file.begin()
    except Unreadable as error:
        raise unreadable(path, error.args[1]) from None
    assert isinstance(reader, CsvReader)
    names = list(reader.header)
    lower = [name.lower() for name in names]
    wrong = f"has no name for column {names.index('') + 1}" if "" in names else None
    for at, name in enumerate(names):
        if wrong is None and name.lower() in lower[:at]:
            wrong = f"has two columns named {name!r}"
    if wrong is not None:
        raise DataError(
            f"The header of {path} {wrong}, and a CSV file is read by its header. Nothing of it "
            "was taken. Fix its first line under its name. Or give, with a new --output, --schema "
            "with a name for every column, and --read-option enforceSchema=true to ignore the "
            "header.",
            remedy="new-columns",
        )
    return names


def text_source(spark: SparkSession, job: Job, schema: T.StructType) -> TextSource:
    """Return how tasks read the files. Raises ConfigError for a type that text cannot hold."""
    file_format, given = job.files.file_format, dict(job.options.read_options)
    spelled = spelling(spark, given)
    columns = pa.schema([*_columns(job, schema, spelled)])
    text_format: CsvFormat | JsonFormat
    if file_format == "csv":
        text_format = CsvFormat(columns=columns, spelling=spelled, **csv_options(given))
    else:
        text_format = JsonFormat(columns=columns, spelling=spelled, **json_options(given))
    return TextSource(
        root=job.files.root, format=text_format, skips_bad=job.options.bad_records != "error"
    )


def _columns(job: Job, schema: T.StructType, spelled: Spelling) -> Iterator[pa.Field]:
    """Yield the columns in the files, as Arrow types."""
    file_format = job.files.file_format
    convert = from_text if file_format == "csv" else from_json
    for field in schema.fields:
        if field.name.lower() in job.files.partitions:
            continue
        try:
            (column,) = text_schema(T.StructType([field]))
            convert(column.type, spelled)
        except (LeftToSpark, TypeError):
            raise ConfigError(
                f"The column {field.name!r} is {field.dataType.simpleString()}, which a value of "
                f"{file_format.upper()} cannot be. Declare it STRING in --schema, which keeps all "
                "of it."
            ) from None
        except ValueError as error:
            raise ConfigError(
                f"The dates or times of the column {field.name!r} cannot be read: {error}."
            ) from None
        yield column
