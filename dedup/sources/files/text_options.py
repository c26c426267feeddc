"""How the options of Spark's readers say that tasks read CSV and JSON."""

from __future__ import annotations

import codecs
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812

from dedup.errors import ConfigError, DataError
from dedup.sources.files.bypass import LeftToSpark, text_schema
from dedup.sources.files.csv_input import CsvFormat, CsvReader
from dedup.sources.files.csv_records import CsvForm
from dedup.sources.files.exact_values import unreadable
from dedup.sources.files.json_input import JsonFormat
from dedup.sources.files.text_input import TextInput
from dedup.sources.files.text_records import Unreadable
from dedup.sources.files.text_values import Spelling, from_json, from_text
from dedup.sources.files.time_pattern import zone_of

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
        "multiline",  # values in quotes may always have several lines
    },
    "json": _OF_BOTH | {"multiline"},
}  # fmt: skip
_FLAGS = {
    "header", "enforceschema", "ignoreleadingwhitespace", "ignoretrailingwhitespace", "multiline"
}  # fmt: skip
#: Python's codecs that do not decode bytes to text, or not in pieces.
_NO_ENCODINGS = {
    "base64", "bz2", "hex", "idna", "punycode", "quopri", "rot-13", "undefined", "uu", "zlib"
}  # fmt: skip
#: Options of Spark's file source that choose files, and those that divide a stream of files.
OF_FILES = {
    "basepath", "filenameonly", "latestfirst", "maxfileage", "modifiedafter", "modifiedbefore",
    "pathglobfilter", "recursivefilelookup",
}  # fmt: skip
OF_STREAMS = {"cleansource", "maxbytespertrigger", "maxfilespertrigger", "sourcearchivedir"}
#: Options that only had a meaning when the columns of a first run were inferred, or that an option
#: of `dedup run` replaced. Outputs of earlier runs may have recorded them.
_FORGOTTEN = {
    "mode": "--bad-records decides about records that cannot be read",
    "columnnameofcorruptrecord": "--bad-records DIR keeps records that cannot be read",
    "inferschema": "give --infer",
    "samplingratio": "all records are read to find the columns; give a schema to read none",
    "primitivesasstring": "give a schema with the columns as STRING",
    "prefersdecimal": "give a schema with the columns as DECIMAL",
    "prefersdate": "give a schema",
    "dropfieldifallnull": "give a schema without these columns",
}
_INSTEAD = _FORGOTTEN | {
    "unescapedquotehandling": "a quote within a value must be written twice",
    "singlevariantcolumn": "give a schema",
    "compression": "the suffix of a file says how it is compressed",
    "maxfilespertrigger": "give --files-per-trigger",
}


def check_options(
    options: Mapping[str, str], file_format: str, *, shown: str = "Option {}"
) -> None:
    """Raise ConfigError for an option of Spark's reader that tasks do not honour.

    `shown` is how users write an option, such as ``--read-option {}``.
    """
    for name, value in options.items():
        lower = name.lower()
        if lower in _HONOURED[file_format] | OF_FILES:
            continue
        way = _INSTEAD.get(lower)
        if lower.startswith("allow") and file_format == "json":
            way = "the text must be strict JSON"
        raise ConfigError(
            f"{shown.format(name)}={value} has no meaning for {file_format.upper()}"
            f"{'' if way is None else f': {way}'}. Leave it out.",
            remedy="bad-records",
        )
    settings = folded(options)
    for name in sorted(_FLAGS & settings.keys()):
        if settings[name].lower() not in ("true", "false"):
            raise ConfigError(f"{shown.format(name)}={settings[name]} must be true or false.")
    for name in ("quote", "escape", "comment"):
        if len(settings.get(name, "")) > 1:
            raise ConfigError(
                f"{shown.format(name)}={settings[name]} must be one character or none."
            )
    if not _separator(settings):
        raise ConfigError(f"{shown.format('sep')} must be at least one character.")
    for name in ("encoding", "charset"):
        try:
            if codecs.lookup(settings.get(name, "UTF-8")).name in _NO_ENCODINGS:
                raise LookupError
        except LookupError:
            raise ConfigError(
                f"{shown.format(name)}={settings[name]} is not a known encoding; give one such as "
                "UTF-8, UTF-16 or ISO-8859-1."
            ) from None


def with_meaning(options: Mapping[str, str], file_format: str | None) -> dict[str, str]:
    """Return the recorded options of an output without those that mean nothing any more."""
    lost = {*_FORGOTTEN} if file_format in _HONOURED else {"mode"}
    if file_format == "csv":
        lost.add("multiline")
    return {name: value for name, value in options.items() if name.lower() not in lost}


def listing_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with which Spark lists files, without those for reading them."""
    listing = OF_FILES | OF_STREAMS
    return {name: value for name, value in options.items() if name.lower() in listing}


def folded(settings: Mapping[str, str]) -> dict[str, str]:
    """Return options of Spark's reader with their names in lower case."""
    return {name.lower(): value for name, value in settings.items()}


def is_true(settings: Mapping[str, str], name: str) -> bool:
    """Return whether an option of Spark's reader is true. Names are in lower case."""
    return settings.get(name, "").lower() == "true"


def _separator(settings: Mapping[str, str]) -> str:
    separator = settings.get("sep", settings.get("delimiter", ","))
    return {"\\t": "\t", "\\\\": "\\"}.get(separator, separator)


def _spelling(settings: Mapping[str, str], time_zone: str) -> Spelling:
    is_english = settings.get("locale", "en").lower().startswith("en")
    zone = settings.get("timezone") or time_zone
    try:
        zone_of(zone)
    except ValueError:
        raise ConfigError(
            f"The time zone {zone} is not known; give a name such as Europe/Berlin, or an offset "
            "such as +02:00, by the option timeZone or spark.sql.session.timeZone."
        ) from None
    return Spelling(
        time_zone=zone,
        date=settings.get("dateformat"),
        timestamp=settings.get("timestampformat"),
        timestamp_ntz=settings.get("timestampntzformat"),
        nan=settings.get("nanvalue", "NaN"),
        positive_inf=settings.get("positiveinf", "Inf"),
        negative_inf=settings.get("negativeinf", "-Inf"),
        # A comma separates thousands only in English. Elsewhere it may be the decimal sign.
        has_groups=is_english and _separator(settings) != ";",
    )


def csv_options(read_options: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `CsvFormat` that say how files are divided into values."""
    settings = folded(read_options)
    quote = settings.get("quote", '"')
    form = CsvForm(
        separator=_separator(settings),
        quote=quote,
        escape=settings.get("escape", quote),
        comment=settings.get("comment", ""),
        line_end=settings.get("linesep", ""),
        null=settings.get("nullvalue", ""),
        empty=settings.get("emptyvalue", ""),
        trims_left=is_true(settings, "ignoreleadingwhitespace"),
        trims_right=is_true(settings, "ignoretrailingwhitespace"),
    )
    return {
        "form": form,
        "encoding": _encoding(settings),
        "has_header": settings.get("header", "true").lower() == "true",
        "ignores_header": is_true(settings, "enforceschema"),
    }


def _encoding(settings: Mapping[str, str]) -> str:
    return settings.get("encoding", settings.get("charset", "UTF-8"))


def header_of(path: Path, read_options: Mapping[str, str]) -> list[str]:
    """Return the names in a file's header, or Spark's names of columns if it has no header.

    A file without records has none. Raises DataError.
    """
    options = csv_options(read_options)
    first_record = {"has_header": True, "ignores_header": False}
    text_format = CsvFormat(columns=pa.schema([]), spelling=Spelling(), **options | first_record)
    try:
        with TextInput(path, text_format) as file:
            reader = file.begin()
    except Unreadable as error:
        raise unreadable(path, error.args[1]) from None
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, str(error).rstrip(".")) from error
    assert isinstance(reader, CsvReader)
    if not options["has_header"]:
        return [f"_c{number}" for number in range(len(reader.header))]
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


def text_format(
    columns: T.StructType,
    file_format: str,
    options: Mapping[str, str],
    time_zone: str,
    folders: Container[str] = (),
) -> CsvFormat | JsonFormat:
    """Return how tasks read files with these columns, apart from columns that folders name.

    `folders` are the names of such columns in lower case. `time_zone` is the session's time zone.
    Raises ConfigError for a type or pattern that text cannot have.
    """
    settings = folded(options)
    spelling = _spelling(settings, time_zone)
    in_files = [field for field in columns.fields if field.name.lower() not in folders]
    schema = pa.schema([*_columns(in_files, file_format, spelling)])
    if file_format == "csv":
        return CsvFormat(columns=schema, spelling=spelling, **csv_options(options))
    return JsonFormat(
        columns=schema,
        spelling=spelling,
        encoding=_encoding(settings),
        line_end=settings.get("linesep", "").encode(),
        is_whole=is_true(settings, "multiline"),
    )


def _columns(
    fields: Sequence[T.StructField], file_format: str, spelling: Spelling
) -> Iterator[pa.Field]:
    convert = from_text if file_format == "csv" else from_json
    for field in fields:
        try:
            (column,) = text_schema(T.StructType([field]))
            convert(column.type, spelling)
        except (LeftToSpark, TypeError):
            raise ConfigError(
                f"The column {field.name!r} is {field.dataType.simpleString()}, which a value of "
                f"{file_format.upper()} cannot be. Declare it STRING in the schema, which keeps "
                "all of it."
            ) from None
        except ValueError as error:
            raise ConfigError(
                f"The dates or times of the column {field.name!r} cannot be read: {error}."
            ) from None
        yield column
