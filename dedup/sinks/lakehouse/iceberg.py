"""Write data files to a table of Apache Iceberg, and commit the files, with the library pyiceberg.

The commit that adds the files also sets the marker, which is a *property of the table*. Spark's own
sink stores its progress in the snapshot's summary instead. The summary disappears when the snapshot
expires, but a property stays. The commit fails if the branch ``main`` has moved since the sink read
the marker.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import pyarrow as pa

from dedup.errors import ConfigError
from dedup.errors.lazy import library
from dedup.errors.redaction import without_secrets
from dedup.sinks.batch import Batch
from dedup.sinks.lakehouse.columns import fit_columns, new_columns, split_rows
from dedup.sinks.lakehouse.options import LakeOptions
from dedup.sinks.lakehouse.work import DataFile, LakePort, LakeTarget
from dedup.sinks.marker import Marker
from dedup.sinks.protocol import Aborted
from dedup.storage.localfile import sync

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import OutputFile
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql.types import StructType

#: Largest number of bytes in the name of a folder. Most file systems have this limit.
_LONGEST_FOLDER = 255
#: Newest version of Iceberg's format that the sink writes. Later versions require row IDs and more.
_NEWEST_FORMAT = 2


def iceberg_library() -> None:
    library("iceberg", "Writing to Iceberg", "pyiceberg.io.pyarrow")


def marker_property(query_id: str, sink: str) -> str:
    return f"dedup.marker.{query_id}.{sink}"


@dataclass(frozen=True)
class IcebergTarget(LakeTarget):
    """A table of Iceberg that a sink writes to.

    `storage` holds the properties by which pyiceberg accesses the table's files.
    """

    metadata: TableMetadata
    storage: dict[str, str] = field(repr=False)

    def write(self, batch: Batch, slot: int, rows: pa.Table) -> list[DataFile]:
        from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

        spec, schema = self.metadata.spec(), self.metadata.schema()
        keys = [
            each.transform.pyarrow_transform(schema.find_field(each.source_id).field_type)(
                rows.column(schema.find_field(each.source_id).name)
            )
            for each in spec.fields
        ]
        # Files have all columns of the table. A column that the stream lacks is null.
        rows = pa.concat_tables(
            [self.columns.columns.empty_table(), rows], promote_options="default"
        )
        files = []
        for values, part in split_rows(self.columns.shown, rows, keys):
            pairs = zip(spec.fields, values, strict=True)
            fields = [PartitionFieldValue(each, value) for each, value in pairs]
            key = PartitionKey(fields, spec, schema) if fields else None
            files.append(self._file(slot, part, key))
        return files

    def _file(self, slot: int, part: pa.Table, key: PartitionKey | None) -> DataFile:
        from pyiceberg.manifest import DataFile as Entry
        from pyiceberg.manifest import DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        output = self._new_output(slot, key)
        schema = self._file_schema()
        statistics = self._write_parquet(output, schema, part)
        _make_durable(output.location)
        size_bytes = len(output)
        entry = Entry.from_args(
            content=DataFileContent.DATA,
            file_path=output.location,
            file_format=FileFormat.PARQUET,
            partition=key.partition if key else Record(),
            file_size_in_bytes=size_bytes,
            sort_order_id=None,
            spec_id=self.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics,
        )
        return DataFile(output.location, size_bytes, entry)

    def _new_output(self, slot: int, key: PartitionKey | None) -> OutputFile:
        from pyiceberg.io import load_file_io
        from pyiceberg.table.locations import load_location_provider

        location = self.metadata.location
        # Readers take partition values from the metadata, so a folder need not be named after them.
        in_folder = key if key and len(key.to_path()) <= _LONGEST_FOLDER else None
        where = load_location_provider(location, self.metadata.properties).new_data_location(
            f"00000-{slot}-{uuid.uuid4()}.parquet", in_folder
        )
        return load_file_io(self.storage, location).new_output(where)

    def _file_schema(self) -> Schema:
        """Return the table's schema with the column names that Iceberg uses in files.

        Nested fields keep their names, because readers find nested fields by their IDs.
        """
        from pyiceberg.schema import Schema, sanitize_column_names

        fields = self.metadata.schema().fields
        plain = sanitize_column_names(self.metadata.schema()).fields
        return Schema(*(
            each.model_copy(update={"name": other.name})
            for each, other in zip(fields, plain, strict=True)
        ))  # fmt: skip

    def _write_parquet(self, output: OutputFile, schema: Schema, part: pa.Table) -> dict[str, Any]:
        """Write rows as a Parquet file, and return the file's statistics.

        This does not call pyiceberg's function for a whole file. That function rebuilds lists and
        maps of structures from their offsets, which turns null into empty lists and maps.
        """
        from pyiceberg.io.fileformat import FileFormatFactory
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.manifest import FileFormat

        target = schema_to_pyarrow(schema, include_field_ids=True)
        rows = part.rename_columns(target.names).cast(target)
        make = FileFormatFactory.get(FileFormat.PARQUET).create_writer
        properties = self.metadata.properties

        def write(settings: dict[str, str]) -> dict[str, Any]:
            writer = make(output, schema, settings)
            with writer:
                writer.write(rows)
            return writer.result().to_serialized_dict()

        try:
            return write(properties)
        except (OverflowError, UnicodeEncodeError):
            # pyiceberg cannot compute a bound for a time or date outside Python's calendar, or for
            # a text whose 16th character is the last character before the surrogates.
            return write(_without_bounds(properties))

    def port(self, batch: Batch, files: Sequence[DataFile]) -> IcebergPort:
        return IcebergPort(self, batch, files)


def _without_bounds(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties that make a file's statistics count values, but leave out bounds."""
    per_column = "write.metadata.metrics.column."
    kept = {name: value for name, value in properties.items() if not name.startswith(per_column)}
    return {**kept, "write.metadata.metrics.default": "counts"}


def _make_durable(place: str) -> None:
    parts = urlsplit(place)
    if parts.scheme in ("", "file"):
        # Do not decode the path, because pyiceberg does not decode it.
        sync(Path(parts.path))
        sync(Path(parts.path).parent)


class IcebergPort(LakePort[IcebergTarget]):
    """A handle with which one driver uses a table of Iceberg."""

    _table: Table
    _sent: Marker | None = None

    def _has_changed(self) -> bool:
        self._table = open_iceberg(self.target.options)
        return _shape_of(self._table.metadata) != _shape_of(self.target.metadata)

    def _marker(self) -> tuple[Marker | None, bool]:
        marker = iceberg_marker(self._table, self.target.options, self.batch.query_id)
        return marker, marker is None or not _is_rolled_back(self._table, marker)

    def _commit(self, marker: Marker) -> None:
        table = self._table
        self._sent = marker
        table.catalog = cast("Catalog", _SingleCommitCatalog(table.catalog))
        name = marker_property(marker.query_id, marker.sink)
        with table.transaction() as transaction:
            with transaction.update_snapshot(_summary_of(marker)).fast_append() as append:
                for file in self.files:
                    append.append_data_file(file.entry)  # type: ignore[arg-type]
            transaction.set_properties({name: marker.to_bytes().decode()})

    def _sizes(self) -> Iterator[int | None]:
        for file in self.files:
            size = None
            with suppress(FileNotFoundError):
                size = len(self._table.io.new_input(file.path))
            yield size

    def is_own(self, marker: Marker) -> bool:
        return self._sent is not None and marker == self._sent

    def delete(self, path: str) -> None:
        self._table.io.delete(path)


def iceberg_marker(table: Table, options: LakeOptions, query_id: str) -> Marker | None:
    name = marker_property(query_id, options.name)
    text = table.properties.get(name)
    where = f"property {name} of {options.table}"
    return None if text is None else Marker.from_bytes(text.encode(), where)


def iceberg_queries(table: Table, options: LakeOptions) -> set[str]:
    """Return the IDs of all queries of which the table has a marker of this sink."""
    names = (name.split(".", 3) for name in table.properties if name.startswith("dedup.marker."))
    return {query_id for *_, query_id, sink in names if sink == options.name}


class _SingleCommitCatalog:
    """A wrapper of a catalog that keeps pyiceberg from handling conflicts itself.

    After a conflict pyiceberg commits again on top of other commits, even if they set a marker. If
    pyiceberg gives up, it deletes the data files. But a conflict may be false: if a client or proxy
    repeats a request whose answer was lost, the first request may have committed the files. With
    this wrapper the files stay, and `remove_orphan_files` can delete them.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, *arguments: Any) -> Any:
        from pyiceberg.exceptions import CommitFailedException

        try:
            return self._catalog.commit_table(*arguments)
        except CommitFailedException as error:
            raise Aborted(str(error)) from None


def _summary_of(marker: Marker) -> dict[str, str]:
    return {
        "dedup.query-id": marker.query_id,
        "dedup.sink": marker.sink,
        "dedup.batch-id": str(marker.batch_id),
        "dedup.rows": str(marker.rows),
        "dedup.content": marker.content,
    }


def _is_rolled_back(table: Table, marker: Marker) -> bool:
    """Return whether ``main`` was rolled back to a state before the marker's commit.

    A rollback removes rows, but keeps properties, so the snapshots have to show this.
    """
    wanted = _summary_of(marker).items()
    of_marker = [
        each
        for each in table.metadata.snapshots
        if each.summary and wanted <= each.summary.additional_properties.items()
    ]
    ids = {each.snapshot_id for each in of_marker}
    first = min((each.sequence_number or 0 for each in of_marker), default=0)
    here = table.current_snapshot()
    while ids and here and here.snapshot_id not in ids:
        if here.parent_snapshot_id is None or (here.sequence_number or 0) < first:
            return True
        here = table.snapshot_by_id(here.parent_snapshot_id)
    # If the table has no current snapshot, the rows are gone. If only a parent snapshot is missing,
    # the parent has expired, and a rollback cannot be detected.
    return bool(ids) and table.current_snapshot() is None


def _shape_of(metadata: TableMetadata) -> tuple[Any, ...]:
    return (
        metadata.table_uuid,
        metadata.current_schema_id,
        metadata.default_spec_id,
        metadata.format_version,
        metadata.location,
    )


def iceberg_target(options: LakeOptions, stream: StructType) -> IcebergTarget:
    """Return the table for a stream's columns, created if missing under the option `create`."""
    iceberg_library()
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    if options.create:
        _create(options, new_columns(stream))
    table = open_iceberg(options)
    metadata, shown = table.metadata, options.table
    if metadata.format_version > _NEWEST_FORMAT:
        raise ConfigError(
            f"Table {shown} has format {metadata.format_version}, and this sink writes up to "
            f"{_NEWEST_FORMAT}. Write with Spark's own connector and dedup.sinks.iceberg_once."
        )
    file_format = metadata.properties.get("write.format.default", "parquet")
    if file_format.lower() != "parquet":
        raise ConfigError(
            f"Table {shown} asks for files of {file_format}; this sink writes Parquet."
        )
    described = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    columns = fit_columns(shown, [field.remove_metadata() for field in described], stream, {})
    for each in metadata.spec().fields:
        name = metadata.schema().find_column_name(each.source_id)
        if name not in columns.given:
            raise ConfigError(
                f"Table {shown} is divided by {each.transform}({name}), and the stream has no "
                "top-level column of this name. Add it to the stream."
            )
    table_id, storage = str(metadata.table_uuid), dict(table.io.properties)
    return IcebergTarget(options, columns, table_id, metadata, storage)


def _create(options: LakeOptions, columns: pa.Schema) -> None:
    from pyiceberg.exceptions import TableAlreadyExistsError

    with options.opening(), suppress(TableAlreadyExistsError):
        catalog = _catalog(options)
        catalog.create_namespace_if_not_exists(options.table.rpartition(".")[0])
        catalog.create_table(options.table, columns)


def open_iceberg(options: LakeOptions) -> Table:
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    with options.opening():
        try:
            return _catalog(options).load_table(options.table)
        except (NoSuchNamespaceError, NoSuchTableError):
            raise options.missing() from None


def _catalog(options: LakeOptions) -> Catalog:
    return _connected(options.catalog, tuple(sorted(options.properties.items())))


@cache
def _connected(name: str, properties: tuple[tuple[str, str], ...]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **dict(properties))
    except ValueError as error:
        raise ConfigError(
            f"Iceberg catalog {name!r} cannot be used: "
            f"{without_secrets(error, dict(properties))}. Give options such as catalog.type and "
            "catalog.uri, or pyiceberg's own configuration."
        ) from None
