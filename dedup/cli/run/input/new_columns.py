"""`--new-columns`: what becomes of columns in new files that the output does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import types as T  # noqa: N812

from dedup.cli.run.input.column_check import ColumnCheck, Unlike
from dedup.cli.run.input.input_files import Stamp
from dedup.cli.run.input.schema_change import Change, changes, joined, type_text
from dedup.cli.run.input.source import InputColumns
from dedup.cli.run.job import Job
from dedup.cli.run.run_options import COLUMNAR
from dedup.errors import ConfigError

#: Says one thing to the user.
Note = Callable[[str], None]
#: So many names are told.
_NAMED = 3


def agree_on_columns(
    check: ColumnCheck, job: Job, columns: InputColumns, stamps: Mapping[str, Stamp], note: Note
) -> InputColumns:
    """Compare the files of this run with the known columns, and decide what is read and written.

    Raises
    ------
    ConfigError
        For columns that nobody has decided about, or that cannot be taken in, by name.
    DataError
        For a file whose columns cannot be read.
    """
    unlike = check.look(stamps)
    if unlike:
        columns = _decided(check, job, columns, unlike, note)
    check.settled(columns, stamps)
    return columns


def check_arrived(check: ColumnCheck, job: Job, paths: Sequence[str]) -> None:
    """Refuse a micro-batch with files that came since `settle`, if they differ.

    Raises
    ------
    ConfigError
        Naming them; nothing of the micro-batch is published yet.
    """
    unlike = check.look_again(paths)
    _refuse_what_cannot_be_read(unlike, job)
    added = [one for one in unlike if one.of_kind("added")]
    if added and job.options.new_columns != "ignore":
        raise _refusal(added, job)


def _decided(
    check: ColumnCheck, job: Job, columns: InputColumns, unlike: Sequence[Unlike], note: Note
) -> InputColumns:
    policy = job.options.new_columns
    _refuse_what_cannot_be_read(unlike, job)
    _refuse_missing(unlike)
    added = [one for one in unlike if one.of_kind("added")]
    if added and policy == "error":
        raise _refusal(added, job)
    in_files = [one for one in unlike if one.columns is not None]
    if policy == "add":
        for one in unlike:
            if one.columns is None:
                raise ConfigError(
                    f"{one.path}: {_named(one.changes)} is named by a folder, and cannot be added "
                    "to an output that is there. Write it into the files, or give "
                    "--new-columns ignore or a new --output.",
                    remedy="new-columns",
                )
    if in_files and job.files.file_format == "csv":
        columns = _one_header(check, job, columns, in_files)
    elif in_files and policy == "add":
        columns = _with_all(check, job, columns, in_files)
    done = "added to the output" if policy == "add" else "left out"
    note(f"Columns that are new in the input are {done}: {_told(unlike)}.")
    return columns


def _with_all(
    check: ColumnCheck, job: Job, columns: InputColumns, unlike: Sequence[Unlike]
) -> InputColumns:
    joint = joined(columns.schema, check.columns_of(unlike))
    assert isinstance(joint, T.StructType)
    if job.files.file_format in COLUMNAR:
        # Two files may disagree about what is new to both.
        _refuse_what_cannot_be_read(
            [
                replace(one, changes=tuple(changes(joint, one.columns)))
                for one in unlike
                if one.columns is not None
            ],
            job,
        )
    return InputColumns(joint, joint)


def _one_header(
    check: ColumnCheck, job: Job, columns: InputColumns, unlike: Sequence[Unlike]
) -> InputColumns:
    """Read CSV by the header that all files of this run have."""
    first, header = unlike[0].path, unlike[0].columns
    assert header is not None
    other = check.alike or next((one.path for one in unlike if one.columns != header), None)
    if other is not None:
        raise ConfigError(
            f"{first} and {other} have different headers, and CSV files of one run must have the "
            "same one. Move those of one kind elsewhere, run, put them back, and run again.",
            remedy="new-columns",
        )
    fields = {field.name.lower(): field for field in columns.schema.fields}
    own = [fields.pop(field.name.lower(), field) for field in header.fields]
    # What is left is named by folders.
    read = T.StructType([*own, *fields.values()])
    return InputColumns(read if job.options.new_columns == "add" else columns.schema, read)


def _refuse_what_cannot_be_read(unlike: Sequence[Unlike], job: Job) -> None:
    for one in unlike:
        respelled = one.of_kind("respelled")
        if respelled and job.options.new_columns != "ignore":
            raise ConfigError(
                f"{one.path} has {_named(respelled)}, which the output has in other case, and "
                "Spark takes names in JSON as they are written: it would be lost. Write it as the "
                "output does, or give --new-columns ignore to leave it out. Nothing of it was "
                "taken.",
                remedy="new-columns",
            )
        for change in one.of_kind("other"):
            raise ConfigError(
                f"{one.path}: the column {change.column!r} is {type_text(change.now)} there, and "
                f"{type_text(change.was)} in the output or another new file. Nothing of it was "
                "taken. Write the file with the type of the output. Or give a new --output, and "
                "--schema with a type that holds both.",
                remedy="new-columns",
            )


def _refuse_missing(unlike: Sequence[Unlike]) -> None:
    for one in unlike:
        missing = one.of_kind("removed")
        if missing:
            besides = one.of_kind("added")
            has = f" and has {_named(besides)} besides" if besides else ""
            raise ConfigError(
                f"{one.path} lacks the columns {_named(missing)}{has}: a CSV file is read by its "
                "header, in its first line. Add them to the file, or give --schema with the "
                "columns that the files have now. Nothing of it was taken.",
                remedy="new-columns",
            )


def _refusal(added: Sequence[Unlike], job: Job) -> ConfigError:
    lacks = (
        "which --schema lacks"
        if job.record is None and job.options.schema is not None
        else f"which --output {job.options.output} lacks"
        if job.record is not None
        else "which the first file lacks"
    )
    return ConfigError(
        f"INPUT has columns, {lacks}: {_told(added)}. Nothing of them was taken. Give "
        "--new-columns add to take them in from now on, --new-columns ignore to leave them out, "
        "or --schema with the columns that you want.",
        remedy="new-columns",
    )


def _told(unlike: Sequence[Unlike]) -> str:
    examples = "; ".join(f"{one.path} has {_named(one.changes)}" for one in unlike[:_NAMED])
    more = len(unlike) - _NAMED
    return f"{examples}; and {more:,} more files" if more > 0 else examples


def _named(differ: Sequence[Change]) -> str:
    examples = ", ".join(
        f"{c.column!r} ({type_text(c.now)})" if c.now is not None else repr(c.column)
        for c in differ[:_NAMED]
    )
    more = len(differ) - _NAMED
    return f"{examples} and {more:,} more" if more > 0 else examples
