"""A table of Apache Iceberg: what is written to it, and the commit that shows it, by pyiceberg.

The marker is a *property of the table*, set in the commit that adds the files. What Spark's own
sink leaves, a line in the snapshot's summary, is gone once the snapshot expires; a property stays.
That commit asserts that the branch ``main`` is where it was when the marker was read.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import pyarrow as pa

from dedup.catalog.localfile import sync
from dedup.errors import ConfigError, MissingExtraError, SinkError, faults
from dedup.errors.redaction import without_secrets
from dedup.sinks.lakehouse.columns import TableColumns, fitting, parts
from dedup.sinks.lakehouse.iceberg_schema import columns_of, schema_of
from dedup.sinks.lakehouse.options import LakeOptions
from dedup.sinks.lakehouse.work import DataFile, rolled_back
from dedup.sinks.marker import Marker
from dedup.sinks.protocol import Aborted, Batch, Indefinite
from dedup.sinks.single_commit import Publication

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

#: Characters of the folders of a partition; file systems take 255 bytes in a name.
_LONGEST_FOLDER = 255
#: Newer formats ask for row IDs, and more, of their writers.
_NEWEST_FORMAT = 2


def iceberg_library() -> None:
    """Check that pyiceberg is there.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        import pyiceberg.io.pyarrow  # noqa: F401
    except ImportError:
        raise MissingExtraError("iceberg", "Writing to Iceberg") from None


def marker_property(query_id: str, sink: str) -> str:
    """Return the property of a table that holds the marker of a sink."""
    return f"dedup.marker.{query_id}.{sink}"


@dataclass(frozen=True, slots=True)
class IcebergFiles:
    """A table that has been looked at; implements `dedup.sinks.lakehouse.work.LakeTable`.

    Parameters
    ----------
    options : LakeOptions
    columns : TableColumns
    metadata : TableMetadata
    storage : mapping of str to str
        How its files are reached.
    """

    options: LakeOptions
    columns: TableColumns
    metadata: TableMetadata
    storage: dict[str, str] = field(repr=False)

    @property
    def setting(self) -> dict[str, str]:
        """What may not change while the sink has markers."""
        return {"table": self.options.table}

    @property
    def table_id(self) -> str:
        """Of this table, and of none that is made anew under its name."""
        return str(self.metadata.table_uuid)

    def write(self, batch: Batch, slot: int, rows: pa.Table) -> list[DataFile]:
        """Write rows to data files that are durable, under names that no other attempt has."""
        from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

        spec, schema = self.metadata.spec(), self.metadata.schema()
        keys = [
            each.transform.pyarrow_transform(schema.find_field(each.source_id).field_type)(
                rows.column(schema.find_field(each.source_id).name)
            )
            for each in spec.fields
        ]
        files = []
        for values, part in parts(self.columns.shown, self._whole(rows), keys):
            fields = [
                PartitionFieldValue(each, value)
                for each, value in zip(spec.fields, values, strict=True)
            ]
            key = PartitionKey(fields, spec, schema) if fields else None
            files.append(self._file(slot, part, key))
        return files

    def _file(self, slot: int, part: pa.Table, key: PartitionKey | None) -> DataFile:
        """Write one data file.

        pyiceberg's own function for it makes empty lists and maps of null ones, where they hold
        structures (it builds them anew from their offsets); its writer and statistics are right.
        """
        from pyiceberg.io import load_file_io
        from pyiceberg.io.fileformat import FileFormatFactory
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.manifest import DataFile as Entry
        from pyiceberg.manifest import DataFileContent, FileFormat
        from pyiceberg.schema import Schema, sanitize_column_names
        from pyiceberg.table.locations import load_location_provider
        from pyiceberg.typedef import Record

        # Names of columns as in all files of Iceberg; readers know what is inside by its ID.
        fields = self.metadata.schema().fields
        plain = sanitize_column_names(self.metadata.schema()).fields
        schema = Schema(*(
            each.model_copy(update={"name": other.name})
            for each, other in zip(fields, plain, strict=True)
        ))  # fmt: skip
        target = schema_to_pyarrow(schema, include_field_ids=True)
        arrays = [column.cast(each.type) for column, each in zip(part.columns, target, strict=True)]
        rows = pa.Table.from_arrays(arrays, schema=target)
        properties = self.metadata.properties
        storage = load_file_io(self.storage, self.metadata.location)
        # Readers take values from the table's metadata, and need no folder named by them.
        in_folder = key if key and len(key.to_path()) <= _LONGEST_FOLDER else None
        where = load_location_provider(self.metadata.location, properties).new_data_location(
            f"00000-{slot}-{uuid.uuid4()}.parquet", in_folder
        )
        output = storage.new_output(where)
        for settings in (properties, _without_bounds(properties)):
            writer = FileFormatFactory.get(FileFormat.PARQUET).create_writer(
                output, schema, settings
            )
            try:
                with writer:
                    writer.write(rows)
                statistics = writer.result().to_serialized_dict()
                break
            except (OverflowError, UnicodeEncodeError):
                # A time or date that Python has not, which pyiceberg would take for a bound, or a
                # text whose 16th character is the last one before the surrogates.
                if settings is not properties:
                    raise
        _make_durable(where)
        size_bytes = len(output)
        entry = Entry.from_args(
            content=DataFileContent.DATA,
            file_path=where,
            file_format=FileFormat.PARQUET,
            partition=key.partition if key else Record(),
            file_size_in_bytes=size_bytes,
            sort_order_id=None,
            spec_id=self.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics,
        )
        return DataFile(where, size_bytes, entry)

    def _whole(self, rows: pa.Table) -> pa.Table:
        """Return rows with all columns of the table, null where the stream has none."""
        arrays = [
            rows.column(column.name)
            if column.name in self.columns.given
            else pa.nulls(len(rows), column.arrow)
            for column in self.columns.columns
        ]
        fields = [
            pa.field(column.name, column.arrow, not column.is_required)
            for column in self.columns.columns
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def port(self, batch: Batch, files: Sequence[DataFile]) -> IcebergPort:
        """Return the table in the hands of this driver, which may commit these files."""
        return IcebergPort(self, batch, files)


@dataclass(slots=True)
class IcebergPort:
    """A table in the hands of one driver; implements `dedup.sinks.lakehouse.work.LakePort`."""

    target: IcebergFiles
    batch: Batch
    files: Sequence[DataFile]
    _table: Table | None = None
    _sent: Marker | None = None

    def newest(self) -> Marker | None:
        """Read the table afresh; return the marker that its newest version holds of this sink."""
        self._table = table = open_table(self.target.options)
        if _shape_of(table.metadata) != _shape_of(self.target.metadata):
            raise ConfigError(
                f"Table {self.target.columns.shown} is another one, or has other columns, "
                "partitions or another format than when the query started. Start the query again, "
                "in foreachBatch with a new iceberg_sink(...). Should a commit have become "
                "visible, it is found then."
            )
        name = marker_property(self.batch.query_id, self.batch.sink)
        told = table.properties.get(name)
        faults.point("lakehouse.marker.read")
        if told is None:
            return None
        marker = Marker.from_bytes(told.encode(), f"property {name} of {self.target.columns.shown}")
        if _is_put_back(table, marker):
            if self.target.options.accept_lost_markers:
                return None
            raise rolled_back(self.target.columns.shown, marker.batch_id)
        return marker

    def commit(self, marker: Marker) -> None:
        """Make rows and marker visible, as the version right behind the one that was read last."""
        table = self._table
        assert table is not None, "newest comes first"
        for file in self.files:
            _check_file(table, file)
        self._sent = marker
        table.catalog = cast("Catalog", _Sender(table.catalog))
        summary = _summary_of(marker)
        name = marker_property(marker.query_id, marker.sink)
        faults.point("lakehouse.commit.before")
        try:
            with table.transaction() as transaction:
                with transaction.update_snapshot(summary).fast_append() as append:
                    for file in self.files:
                        append.append_data_file(file.entry)  # type: ignore[arg-type]
                transaction.set_properties({name: marker.to_bytes().decode()})
            faults.point("lakehouse.commit.after")
        except Aborted:
            raise
        except Exception as error:
            raise Indefinite(self.target.options.without_secrets(error)) from None

    def is_own(self, marker: Marker) -> bool:
        """Return whether a marker that was read is the one that this port sent."""
        return self._sent is not None and marker == self._sent

    def clean(self, outcome: Publication) -> None:
        """Delete the data files of this attempt, where it found the micro-batch published.

        Those of other attempts stay for `remove_orphan_files`.
        """
        if outcome is Publication.FOUND and self._table is not None:
            for file in self.files:
                with suppress(Exception):
                    self._table.io.delete(file.path)


class _Sender:
    """A catalog whose refusals are none that pyiceberg acts upon.

    To a conflict it answers by committing again, on top of whatever came in between, a marker too;
    and in the end it deletes what the commit has written. Yet a client or a proxy that sends a
    request twice after a lost answer meets its own commit as a conflict: then a snapshot of the
    table names those files. Here they stay, for `remove_orphan_files`.
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


def iceberg_files(options: LakeOptions, stream: Sequence[tuple[str, str]]) -> IcebergFiles:
    """Return a table that has been looked at, for the columns of a stream.

    Parameters
    ----------
    options : LakeOptions
    stream : sequence of (str, str)
        Names and Spark's types.

    Raises
    ------
    ConfigError
        Saying what to change.
    MissingExtraError
        If the extra ``iceberg`` is not installed.
    """
    iceberg_library()
    if options.create:
        _create(options, stream)
    table = open_table(options)
    metadata = table.metadata
    if metadata.format_version > _NEWEST_FORMAT:
        raise ConfigError(
            f"Table {options.table} has format {metadata.format_version}, and this sink writes up "
            f"to {_NEWEST_FORMAT}. Write with Spark's own connector and "
            "dedup.iceberg_once."
        )
    if metadata.properties.get("write.format.default", "parquet").lower() != "parquet":
        raise ConfigError(
            f"Table {options.table} asks for files of "
            f"{metadata.properties['write.format.default']}; this sink writes Parquet."
        )
    columns = fitting(options.table, columns_of(metadata.schema()), stream)
    arrow = {column.name: column.arrow for column in columns.columns}
    for each in metadata.spec().fields:
        source = metadata.schema().find_field(each.source_id)
        shown = f"{each.transform}({source.name})"
        if metadata.schema().find_column_name(each.source_id) not in columns.given:
            raise ConfigError(
                f"Table {options.table} is divided by {shown}, and no column of the stream itself "
                "is of that name."
            )
        try:
            transform = each.transform.pyarrow_transform(source.field_type)
            transform(pa.nulls(1, arrow[source.name]))
        except Exception as error:
            raise ConfigError(
                f"Table {options.table} is divided by {shown}, which pyiceberg cannot compute "
                f"here: {error}."
            ) from None
    return IcebergFiles(options, columns, metadata, dict(table.io.properties))


def _create(options: LakeOptions, stream: Sequence[tuple[str, str]]) -> None:
    from pyiceberg.exceptions import TableAlreadyExistsError

    try:
        catalog = _catalog(options)
        with suppress(TableAlreadyExistsError):
            catalog.create_namespace_if_not_exists(options.table.rpartition(".")[0])
            catalog.create_table(options.table, schema_of(stream))
    except ConfigError:
        raise
    except Exception as error:
        raise SinkError(
            f"Table {options.table} could not be created: {options.without_secrets(error)}. Start "
            "the query again once it can."
        ) from None


def open_table(options: LakeOptions) -> Table:
    """Return the newest version of the table.

    Raises
    ------
    ConfigError
        If there is none.
    SinkError
        If its catalog does not answer.
    """
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return _catalog(options).load_table(options.table)
    except (NoSuchNamespaceError, NoSuchTableError):
        raise ConfigError(
            f"Catalog {options.catalog} has no table {options.table}. Create it, correct the "
            "option table, or let the option create=true make it from the columns of the stream."
        ) from None
    except ConfigError:
        raise
    except Exception as error:
        raise SinkError(
            f"Table {options.table} cannot be read: {options.without_secrets(error)}. Start the "
            "query again once it can; should a commit have become visible before, it is found then."
        ) from None


def _catalog(options: LakeOptions) -> Catalog:
    return _connected(options.catalog, tuple(sorted(options.properties.items())))


@cache
def _connected(name: str, properties: tuple[tuple[str, str], ...]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name, **dict(properties))
    except ValueError as error:
        raise ConfigError(
            f"There is no catalog of Iceberg named {name!r}: "
            f"{without_secrets(error, dict(properties))}. Give options such as catalog.type and "
            "catalog.uri, or pyiceberg's own configuration."
        ) from None


def _shape_of(metadata: TableMetadata) -> tuple[Any, ...]:
    return (
        metadata.table_uuid,
        metadata.current_schema_id,
        metadata.default_spec_id,
        metadata.format_version,
        metadata.location,
    )


def _summary_of(marker: Marker) -> dict[str, str]:
    return {
        "dedup.query-id": marker.query_id,
        "dedup.sink": marker.sink,
        "dedup.batch-id": str(marker.batch_id),
        "dedup.rows": str(marker.rows),
        "dedup.content": marker.content,
    }


def _is_put_back(table: Table, marker: Marker) -> bool:
    """Return whether ``main`` was taken back to before a commit, as far as snapshots tell.

    Properties stay where rows go.
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
    # Without a snapshot here its parent has expired, and nobody knows; a new table has no marker.
    return bool(ids) and table.current_snapshot() is None


def _check_file(table: Table, file: DataFile) -> None:
    """Refuse to commit a file that somebody has removed, such as orphans that are too young."""
    try:
        found = len(table.io.new_input(file.path))
    except Exception:
        found = -1
    if found != file.size_bytes:
        raise SinkError(
            f"The data file {file.path} is gone or changed before it was committed; nothing of the "
            "micro-batch is in the table. Let remove_orphan_files and others leave files alone "
            "that are younger than a micro-batch takes, and start the query again."
        )


def _without_bounds(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties with which a file's statistics count values and say no more of them."""
    per_column = "write.metadata.metrics.column."
    kept = {name: told for name, told in properties.items() if not name.startswith(per_column)}
    return {**kept, "write.metadata.metrics.default": "counts"}


def _make_durable(place: str) -> None:
    told = urlsplit(place)
    if told.scheme in ("", "file"):
        # As pyiceberg takes it: what is encoded in it stays so.
        sync(Path(told.path))
        sync(Path(told.path).parent)
