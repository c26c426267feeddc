"""Complete the options of a `dedup run` from the files and from the record of earlier runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dedup.cli.run.input.files import InputFiles, check_in_folders, find_files
from dedup.cli.run.options import COLUMNAR, RunOptions
from dedup.cli.run.record import Record, check_checkpoint, check_same, check_unfinished
from dedup.errors import ConfigError
from dedup.sources.files.text_input import PACKED
from dedup.sources.files.text_options import check_options

#: Size of a micro-batch's files for each core, which a worker holds in memory. Parquet, ORC and
#: compressed text grow when they are read.
_CORE_BYTES, _PACKED_CORE_BYTES = 256 << 20, 64 << 20
_MAX_FILES = 1_000


@dataclass(frozen=True, slots=True)
class Job:
    """The complete options and the files of a run, and the record of earlier runs."""

    options: RunOptions
    files: InputFiles
    record: Record | None
    shards: int
    files_per_trigger: int


def resolve(options: RunOptions) -> Job:
    """Return the complete job. Raises ConfigError if options, files and record do not agree."""
    record = Record.read(options.output)
    if record is not None:
        # What the first run inferred from its files holds for all later files.
        options = replace(
            options,
            file_format=options.file_format or record.options["file_format"],
            output_format=options.output_format or record.options["output_format"],
        )
    files = find_files(options, by_name=record is not None and record.pattern is not None)
    if record is not None:
        check_same(options, record)
        check_unfinished(options, record)
        files = replace(files, partitioned=record.partitioned, compressed=record.compressed)
    check_in_folders(files)
    file_format = files.file_format
    output_format = options.output_format or ("parquet" if file_format == "orc" else file_format)
    options = replace(options, file_format=file_format, output_format=output_format)
    _check_strictness(options, file_format)
    check_checkpoint(options, record)
    shards = options.shards or (record.shards if record else options.cores)
    return Job(options, files, record, shards, _files_per_trigger(options, files, shards))


def _files_per_trigger(options: RunOptions, files: InputFiles, shards: int) -> int:
    """Return the number of files of a micro-batch, from their mean size if no option gives it."""
    if options.files_per_trigger is not None:
        return options.files_per_trigger
    stamps = files.stamps.values()
    size = sum(stamp.size for stamp in stamps) // max(1, len(stamps))
    is_packed = files.file_format in COLUMNAR or any(re.search(PACKED, p) for p in files.stamps)
    per_core = _PACKED_CORE_BYTES if is_packed else _CORE_BYTES
    most = per_core * min(shards, options.cores) // max(1, size)
    return min(max(1, most), _MAX_FILES)


def _check_strictness(options: RunOptions, file_format: str) -> None:
    if file_format in COLUMNAR:
        if options.bad_records != "error":
            raise ConfigError(
                f"--bad-records {options.bad_records} has no meaning for {COLUMNAR[file_format]}, "
                "whose records cannot be read one by one: a damaged file always stops the run. "
                "Leave the option out.",
                remedy="bad-records",
            )
        return
    check_options(dict(options.read_options), file_format, shown="--read-option {}")
