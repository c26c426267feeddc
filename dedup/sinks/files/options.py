"""Options of the sink, as ``writeStream.option`` takes them, checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from dedup.catalog.uri import scheme_of, without_credentials
from dedup.core.duration import size_bytes
from dedup.errors import ConfigError
from dedup.sinks.files.output_root import parsed_s3
from dedup.sinks.options import batch_number, check_name, flag, folder, known_options, located

FORMAT = "dedup_files"
#: By format: its codecs, the first being the default.
CODECS = {
    "parquet": ("snappy", "zstd", "gzip", "none"),
    "json": ("none", "gzip"),
    "csv": ("none", "gzip"),
}
_OWN = (
    "accept.difference", "accept.lost.markers", "checkpointlocation", "compression", "file.format",
    "header", "name", "partition.by", "path", "target.file.size",
)  # fmt: skip
_LARGEST_ON_S3_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesOptions:
    """What a sink was told.

    Parameters
    ----------
    path : str
        Absolute path, or an ``s3://`` URI as pyarrow takes it.
    file_format : str
        One of `CODECS`.
    compression : str
        One of its codecs.
    header : bool
        Whether CSV files begin with the names of the columns.
    partition_by : tuple of str
        Columns whose values name folders.
    target_bytes : int or None
        A task begins another file once one is so large.
    name : str
        Of the sink within its query; part of markers.
    ledger : str
        Folder of what the checkpoint remembers of the sink.
    accept_difference : int or None
        A micro-batch that goes on although it was published with other rows.
    accept_lost_markers : bool
    """

    path: str = field(repr=False)  # it may hold a secret
    file_format: str = "parquet"
    compression: str = "snappy"
    header: bool = False
    partition_by: tuple[str, ...] = ()
    target_bytes: int | None = None
    name: str = "files"
    ledger: str = field(repr=False)
    accept_difference: int | None = None
    accept_lost_markers: bool = False

    @property
    def is_on_s3(self) -> bool:
        """Whether the output is in an object store."""
        return scheme_of(self.path) is not None


def files_options(given: Mapping[str, str]) -> FilesOptions:
    """Return the options that a user gave.

    Parameters
    ----------
    given : mapping of str to str
        In any case, as Spark's options are.

    Raises
    ------
    ConfigError
        If one is unknown, missing or cannot be.
    """
    options = known_options(given, _OWN, format_name=FORMAT)
    if not options.get("path"):
        raise ConfigError("The sink needs the option path: the folder of the output.")
    path = located(options["path"])
    if scheme_of(path) not in (None, "s3"):
        raise ConfigError(
            f"path={without_credentials(path)!r} cannot be used: the sink writes to a local file "
            "system, to a folder that all machines mount, and to s3://bucket/folder."
        )
    if scheme_of(path) and "#" in path:
        raise ConfigError(
            f"path={without_credentials(path)!r} cannot be used: in a URI, '#' ends the name of "
            "the folder. Write %23 where it is part of it."
        )
    file_format = options.get("file.format", "parquet").lower()
    if file_format not in CODECS:
        raise ConfigError(f"Option file.format={file_format!r} must be one of {', '.join(CODECS)}.")
    codecs = CODECS[file_format]
    compression = options.get("compression", codecs[0]).lower()
    compression = "none" if compression == "uncompressed" else compression
    if compression not in codecs:
        raise ConfigError(
            f"Option compression={compression!r} must be one of {', '.join(codecs)} for "
            f"{file_format}."
        )
    if "header" in options and file_format != "csv":
        raise ConfigError("Option header is for file.format csv.")
    name = options.get("name", "files")
    check_name("name", name, "markers")
    columns = [each.strip() for each in options.get("partition.by", "").split(",")]
    if twice := [each for each in columns if each and columns.count(each) > 1]:
        raise ConfigError(f"Option partition.by names {twice[0]!r} more than once.")
    made = FilesOptions(
        path=path,
        file_format=file_format,
        compression=compression,
        header=flag("header", options),
        partition_by=tuple(each for each in columns if each),
        target_bytes=_target_bytes(options.get("target.file.size"), scheme_of(path) is not None),
        name=name,
        ledger=folder(options, name),
        accept_difference=batch_number("accept.difference", options),
        accept_lost_markers=flag("accept.lost.markers", options),
    )
    _check_apart(made, options.get("checkpointlocation", ""))
    return made


def _target_bytes(text: str | None, is_on_s3: bool) -> int | None:
    if text is None:
        return _LARGEST_ON_S3_BYTES if is_on_s3 else None
    nbytes = size_bytes(text) or 0
    # A copy within S3 takes no object of more than 5 GiB.
    if not 1 << 10 <= nbytes <= 4 << 30:
        raise ConfigError(
            f"Option target.file.size={text!r} must be 1KB to 4GB, such as 128MB (of 1024 * 1024 "
            "bytes each), or a number of bytes."
        )
    return nbytes


def _check_apart(options: FilesOptions, checkpoint: str) -> None:
    """Refuse a checkpoint that readers of the output would take for rows."""
    if not checkpoint:
        return
    checkpoint = located(checkpoint)
    (store, output), (other_store, place) = _store_of(options.path), _store_of(checkpoint)
    if other_store != store or not place.is_relative_to(output):
        return
    inside = place.relative_to(output).parts
    if not (inside and inside[0].startswith("_")):
        raise ConfigError(
            f"checkpointLocation {without_credentials(checkpoint)} lies in the output "
            f"{without_credentials(options.path)}, where readers would find it: give a folder "
            "elsewhere, or one whose name begins with an underscore."
        )


def _store_of(place: str) -> tuple[str | None, PurePosixPath]:
    """Return a bucket, None for a disk, and the folder in it; Spark's name for S3 is s3a."""
    scheme = scheme_of(place)
    if scheme is None:
        return None, PurePosixPath(place)
    bucket, folder, _ = parsed_s3(place)
    return f"{scheme[:2]}://{bucket}", PurePosixPath(folder)
