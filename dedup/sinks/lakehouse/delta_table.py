"""A table of Delta Lake: what is written to it, and the commit that shows it, through delta-rs.

The marker is kept in *application transactions* of the commit, which the log's checkpoints carry on
for ever, other than the commit's own description (Delta's protocol, "Transaction Identifiers").
delta-rs writes them and passes over none by itself (delta-io/delta-rs#3821), so the rule of
`dedup.sinks.single_commit` does.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from dedup.catalog.root import Root
from dedup.errors import CatalogError, ConfigError, MissingExtraError, SinkError, faults
from dedup.sinks.lakehouse.columns import TableColumns, fitting, parts
from dedup.sinks.lakehouse.delta_schema import (
    RETENTION,
    columns_of,
    partition_text,
    refuse_features,
    schema_json,
    stats_of,
)
from dedup.sinks.lakehouse.options import LakeOptions
from dedup.sinks.lakehouse.work import DataFile, rolled_back
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.sinks.protocol import Aborted, Batch, Indefinite
from dedup.sinks.single_commit import Publication

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: The hash of the rows in numbers that a transaction's version can be.
_PIECE_BITS = 43
_PIECES = ("content-0", "content-1", "content-2")


def delta_library() -> Any:
    """Return delta-rs.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        import deltalake
    except ImportError:
        raise MissingExtraError("delta", "Writing to Delta Lake") from None
    return deltalake


def app_id(query_id: str, sink: str) -> str:
    """Return the application ID of a sink: of its query, or a new checkpoint would be passed by."""
    return f"dedup/{query_id}/{sink}"


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """A table that has been looked at; implements `dedup.sinks.lakehouse.work.LakeTable`.

    Parameters
    ----------
    options : LakeOptions
    columns : TableColumns
    partition_by : tuple of str
    shape : str
        Hash of what files are written for; another one at the commit is refused.
    table_id : str
    """

    options: LakeOptions
    columns: TableColumns
    partition_by: tuple[str, ...]
    shape: str
    table_id: str

    @property
    def setting(self) -> dict[str, str]:
        """What may not change while the sink has markers."""
        return {"path": self.options.table}

    def write(self, batch: Batch, slot: int, rows: pa.Table) -> list[DataFile]:
        """Write rows to data files that are durable, under names that no other attempt has."""
        root = Root(self.options.table)
        files = []
        for values, part in parts(
            self.columns.shown, rows, [rows.column(name) for name in self.partition_by]
        ):
            texts = {
                name: partition_text(self.columns.shown, name, value)
                for name, value in zip(self.partition_by, values, strict=True)
            }
            name = f"{self.folder(batch)}/{slot:05d}-{uuid.uuid4().hex}.parquet"
            buffer = io.BytesIO()
            metadata: list[pq.FileMetaData] = []
            pq.write_table(
                part.drop_columns(list(self.partition_by)), buffer, metadata_collector=metadata
            )
            data = buffer.getvalue()
            root.put_bytes(name, data)
            files.append(DataFile(name, len(data), (texts, stats_of(metadata[0]))))
        return files

    def folder(self, batch: Batch) -> str:
        """Return where the files of a micro-batch are, below the table."""
        whose = hashlib.blake2b(app_id(batch.query_id, batch.sink).encode(), digest_size=8)
        return f"dedup-{whose.hexdigest()}/{batch.batch_id}"

    def port(self, batch: Batch, files: Sequence[DataFile]) -> DeltaPort:
        """Return the table in the hands of this driver, which may commit these files."""
        return DeltaPort(self, batch, files)


@dataclass(slots=True)
class DeltaPort:
    """A table in the hands of one driver; implements `dedup.sinks.lakehouse.work.LakePort`."""

    target: DeltaFiles
    batch: Batch
    files: Sequence[DataFile]
    _table: DeltaTable | None = None
    #: Tells this port's commits from those of any other.
    _own: int = field(default_factory=lambda: secrets.randbits(62))
    _found: int | None = None

    def newest(self) -> Marker | None:
        """Read the table afresh; return the marker that its newest version holds of this sink."""
        self._table = table = open_table(self.target.options)
        if shape_of(table) != self.target.shape or str(table.metadata().id) != self.target.table_id:
            raise ConfigError(
                f"Table {self.target.columns.shown} has other columns, partitions, properties "
                "or features than when the query started. Start the query again, in foreachBatch "
                "with a new delta_sink(...). Should a commit have become visible, it is found then."
            )
        mine = app_id(self.batch.query_id, self.batch.sink)
        batch_id = table.transaction_version(mine)
        faults.point("lakehouse.marker.read")
        if batch_id is None:
            return None
        others = [
            table.transaction_version(f"{mine}/{name}") for name in ("version", "rows", *_PIECES)
        ]
        self._found = table.transaction_version(f"{mine}/commit")
        if None in others or self._found is None:
            raise SinkError(
                f"The marker of micro-batch {batch_id} in table {self.target.columns.shown} is not "
                "whole, so nobody can tell what was published. Nothing was written.",
                remedy="sink-markers",
            )
        version, rows, *pieces = (int(other or 0) for other in others)
        if _is_put_back(table, version):
            if self.target.options.accept_lost_markers:
                return None
            raise rolled_back(self.target.columns.shown, batch_id)
        content = sum(piece << (_PIECE_BITS * place) for place, piece in enumerate(pieces))
        return Marker(
            query_id=self.batch.query_id,
            sink=self.batch.sink,
            slot=BATCH_SLOT,
            batch_id=batch_id,
            rows=rows,
            content=f"{content:032x}",
            run_id="",
        )

    def commit(self, marker: Marker) -> None:
        """Make rows and marker visible, as the version right behind the one that was read last."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, RemoveAction

        assert self._table is not None, "newest comes first"
        _check_files(self._table, self.files)
        mine = app_id(self.batch.query_id, self.batch.sink)
        content = int(marker.content, 16)
        numbers = {
            mine: marker.batch_id,
            f"{mine}/version": self._table.version() + 1,
            f"{mine}/rows": marker.rows,
            f"{mine}/commit": self._own,
            **{
                f"{mine}/{name}": content >> (_PIECE_BITS * place) & ((1 << _PIECE_BITS) - 1)
                for place, name in enumerate(_PIECES)
            },
        }
        actions: list[AddAction | RemoveAction] = []
        for file in self.files:
            partition, stats = cast("tuple[dict[str, str | None], str]", file.entry)
            actions.append(
                AddAction(file.path, file.size_bytes, partition, marker.time_ms, True, stats)
            )
        properties = CommitProperties(
            # For people; it goes with the log's old files.
            custom_metadata={"dedup": marker.to_bytes().decode()},
            # What came in between is for `newest` to look at.
            max_commit_retries=0,
            app_transactions=[
                Transaction(name, number, marker.time_ms) for name, number in numbers.items()
            ],
        )
        faults.point("lakehouse.commit.before")
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(self.target.partition_by),
                commit_properties=properties,
            )
            faults.point("lakehouse.commit.after")
        except CommitFailedError as error:
            said = self.target.options.without_secrets(error)
            raise Aborted(f"another writer was first ({said})") from None
        except Exception as error:
            raise Indefinite(self.target.options.without_secrets(error)) from None

    def is_own(self, marker: Marker) -> bool:
        """Return whether a marker that was read is the one that this port sent."""
        return self._found == self._own

    def clean(self, outcome: Publication) -> None:
        """Delete the data files of this attempt, where it found the micro-batch published.

        Those of other attempts stay for `VACUUM`: a version of the table may name them.
        """
        if outcome is Publication.FOUND:
            with suppress(CatalogError):
                Root(self.target.options.table).delete(file.path for file in self.files)


def delta_files(options: LakeOptions, stream: Sequence[tuple[str, str]]) -> DeltaFiles:
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
        If the extra ``delta`` is not installed.
    """
    table = open_table(options, schema_json(stream) if options.create else None)
    refuse_features(options.table, table)
    partition_by = tuple(table.metadata().partition_columns)
    columns = fitting(options.table, columns_of(table), stream)
    for name in partition_by:
        if name not in columns.given:
            raise ConfigError(
                f"Table {options.table} is divided by column {name!r}, which the stream lacks. Add "
                "it to the stream."
            )
        kind = next(column.kind for column in columns.columns if column.name == name)
        if kind not in _PARTITION_KINDS:
            raise ConfigError(
                f"Table {options.table} is divided by column {name!r} of type {kind}; this sink "
                f"writes partitions of {', '.join(_PARTITION_KINDS)} alone."
            )
    if not set(columns.given) - set(partition_by):
        raise ConfigError(
            f"Table {options.table} is divided by all columns that the stream has, and a file "
            "without a column has no rows. Add another column of the table to the stream, such as "
            "a null of its type."
        )
    return DeltaFiles(options, columns, partition_by, shape_of(table), str(table.metadata().id))


_PARTITION_KINDS = ("boolean", "tinyint", "smallint", "int", "bigint", "string", "date")


def open_table(options: LakeOptions, schema: str | None = None) -> DeltaTable:
    """Return the newest version of the table, which is made first where there is a schema for it.

    Raises
    ------
    ConfigError
        If there is none.
    SinkError
        If its storage does not answer, or delta-rs cannot read it.
    """
    deltalake = delta_library()
    properties = dict(options.properties) or None
    try:
        if schema is not None:
            columns = deltalake.Schema.from_json(schema)
            deltalake.DeltaTable.create(
                options.table, columns, mode="ignore", storage_options=properties
            )
        table: DeltaTable = deltalake.DeltaTable(options.table, storage_options=properties)
        return table
    except Exception as error:
        if schema is None and isinstance(error, deltalake.exceptions.TableNotFoundError):
            raise ConfigError(
                f"There is no table of Delta Lake at {options.table}. Create it, correct the path, "
                "or let the option create=true make it from the columns of the stream."
            ) from None
        raise SinkError(
            f"The table at {options.table} cannot be opened: {options.without_secrets(error)}. "
            "Start the query again once it can; should a commit have become visible before, it is "
            "found then."
        ) from None


def shape_of(table: DeltaTable) -> str:
    """Return a hash of what data files of a table must look like."""
    metadata, protocol = table.metadata(), table.protocol()
    told = [
        table.schema().to_json(),
        metadata.partition_columns,
        sorted(item for item in metadata.configuration.items() if not _is_upkeep(item[0])),
        protocol.min_writer_version,
        sorted(protocol.writer_features or ()),
    ]
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()


def _is_put_back(table: DeltaTable, version: int) -> bool:
    """Return whether RESTORE took the table back to before a version, as far as its log tells.

    Application transactions stay where rows go.
    """
    later = table.version() - version
    has_rows = {version: True}
    for told in reversed(table.history(later) if later > 0 else []):
        here = int(told["version"])
        has_rows[here] = has_rows.get(here - 1, True)
        if told.get("operation") == "RESTORE":
            to = (told.get("operationParameters") or {}).get("version")
            # Without a version it was to a time.
            has_rows[here] = to is not None and has_rows.get(int(to), int(to) > version)
    return not has_rows.get(table.version(), True)


def _is_upkeep(name: str) -> bool:
    return not name.startswith(("delta.constraints", "delta.columnMapping", RETENTION))


def _check_files(table: DeltaTable, files: Sequence[DataFile]) -> None:
    """Refuse to commit files that are not where delta-rs commits: removed, or in another store."""
    from deltalake.fs import DeltaStorageHandler

    try:
        store = pafs.PyFileSystem(DeltaStorageHandler.from_table(table._table))
        found = store.get_file_info([file.path for file in files])
    except Exception as error:
        raise SinkError(
            f"The table at {table.table_uri} cannot be read: {error}. Start the query again once "
            "it can; should a commit have become visible before, it is found then."
        ) from None
    for file, info in zip(files, found, strict=True):
        if info.size != file.size_bytes:
            raise SinkError(
                f"The data file {file.path} of table {table.table_uri} is gone or changed before "
                "it was committed. Let VACUUM and others leave files alone that are younger than a "
                "micro-batch takes; give driver and executors the same AWS_ENDPOINT_URL and "
                "credentials, of one store; and start the query again."
            )
