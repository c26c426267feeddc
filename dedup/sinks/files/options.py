"""The options of the files sink, which users pass to ``writeStream.option``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from dedup.errors import ConfigError
from dedup.sinks.files.output_root import parsed_s3
from dedup.sinks.options import ACCEPT, SinkOptions, located, named, sink_values
from dedup.storage.uri import scheme_of, without_credentials
from dedup.values.option import REQUIRED, Option, choice, names, nbytes, refused, switch, text

FORMAT = "dedup_files"
#: The compression codecs of each file format. The first codec is the default.
CODECS = {
    "parquet": ("snappy", "zstd", "gzip", "none"),
    "json": ("none", "gzip"),
    "csv": ("none", "gzip"),
}
_LARGEST_ON_S3_BYTES = 1 << 30

OPTIONS = (
    Option("path", text(), REQUIRED, "the folder of the output, or `s3://bucket/folder`"),
    Option("file.format", choice(*CODECS), "parquet", "`json` writes lines"),
    Option("compression", text(), help="Parquet: `snappy` (default), `zstd`, `gzip`, `none`; "
           "JSON and CSV: `none` (default), `gzip`"),
    Option("header", switch(), help="CSV files begin with the names of the columns"),
    Option("partition.by", names(), (), "columns whose values name folders"),
    # S3 cannot copy an object of more than 5 GiB.
    Option("target.file.size",
           nbytes(1 << 10, 4 << 30),
           help="a task begins another file once one is so large; on S3, default: 1 GB"),
    named("files"),
    *ACCEPT,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesOptions(SinkOptions):
    """The values of the options in `OPTIONS`.

    `path` is an absolute path, or an ``s3://`` URI in pyarrow's form.
    """

    path: str = field(repr=False)  # the URI may hold a secret
    file_format: str
    compression: str
    header: bool
    partition_by: tuple[str, ...]
    target_bytes: int | None

    @property
    def is_on_s3(self) -> bool:
        return scheme_of(self.path) is not None


def files_options(options: Mapping[str, str]) -> FilesOptions:
    values = sink_values(FORMAT, options, OPTIONS)
    values["path"] = path = _checked_path(located(values["path"]))
    file_format = values["file_format"]
    values["compression"] = _compression(values["compression"], file_format)
    if values["header"] is not None and file_format != "csv":
        raise ConfigError("Option header is for file.format csv.")
    values["header"] = bool(values["header"])
    largest = values.pop("target_file_size")
    values["target_bytes"] = largest or (_LARGEST_ON_S3_BYTES if scheme_of(path) else None)
    made = FilesOptions(**values)
    texts = {name.lower(): value.strip() for name, value in options.items()}
    _check_apart(made, texts.get("checkpointlocation", ""))
    return made


def _compression(codec: str | None, file_format: str) -> str:
    codecs = CODECS[file_format]
    chosen = codecs[0] if codec is None else codec.lower().replace("uncompressed", "none")
    if chosen not in codecs:
        rule = f"be one of {', '.join(codecs)} for {file_format}."
        raise refused("Option compression", codec, rule)
    return chosen


def _checked_path(path: str) -> str:
    shown = without_credentials(path)
    if scheme_of(path) not in (None, "s3"):
        raise ConfigError(
            f"path={shown!r} cannot be used: the sink writes to a local file system, to a folder "
            "that all machines mount, and to s3://bucket/folder."
        )
    if scheme_of(path) and "#" in path:
        raise ConfigError(
            f"path={shown!r} cannot be used: in a URI, '#' ends the name of the folder. Write %23 "
            "where it is part of it."
        )
    return path


def _check_apart(options: FilesOptions, checkpoint: str) -> None:
    """Raise ConfigError if the checkpoint is in the output, where readers would read its files."""
    if not checkpoint:
        return
    checkpoint = located(checkpoint)
    (store, output), (other_store, place) = _store_of(options.path), _store_of(checkpoint)
    if other_store != store or not place.is_relative_to(output):
        return
    inside = place.relative_to(output).parts
    if not (inside and inside[0].startswith("_")):
        raise ConfigError(
            f"checkpointLocation {without_credentials(checkpoint)} is in the output "
            f"{without_credentials(options.path)}, where readers would find it. Give a folder "
            "elsewhere, or one whose name begins with an underscore."
        )


def _store_of(place: str) -> tuple[str | None, PurePosixPath]:
    """Return the bucket, or None for a local disk, and the folder.

    The bucket is the same for ``s3://`` and for ``s3a://``, Spark's name for S3.
    """
    scheme = scheme_of(place)
    if scheme is None:
        return None, PurePosixPath(place)
    bucket, folder, _ = parsed_s3(place)
    return f"{scheme[:2]}://{bucket}", PurePosixPath(folder)
