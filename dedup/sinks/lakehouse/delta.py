"""Write data files to a table of Delta Lake, and commit the files, with the library delta-rs.

The commit stores the marker in *application transactions* (Delta's protocol, "Transaction
Identifiers"). The log's checkpoints keep application transactions permanently, but do not keep the
commit's own description. delta-rs writes application transactions, but does not skip a commit
because of them (delta-io/delta-rs#3821), so `dedup.sinks.single_commit` compares the markers.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from dedup.errors import ConfigError, DataError, SinkError
from dedup.errors.lazy import library
from dedup.sinks.batch import Batch
from dedup.sinks.lakehouse.columns import (
    TableColumns,
    fit_columns,
    new_columns,
    spark_name,
    split_rows,
)
from dedup.sinks.lakehouse.options import LakeOptions
from dedup.sinks.lakehouse.work import DataFile, LakePort, LakeTarget
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.sinks.protocol import Aborted
from dedup.storage.root import Root

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

_PARTITION_KINDS = ("boolean", "tinyint", "smallint", "int", "bigint", "string", "date")
#: Table features that a writer may ignore if it only appends, or whose rules this module checks.
_KNOWN_FEATURES = frozenset({
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns",
    "timestampNtz", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck", "variantType",
})  # fmt: skip
#: Features of columns and nested fields that the sink does not support, keyed by metadata key.
_ON_COLUMNS = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
}
#: The table property that makes Delta delete markers after some time.
_RETENTION = "delta.setTransactionRetentionDuration"
#: The key that a ``varchar(n)`` column has in its metadata.
_LONGEST = "__CHAR_VARCHAR_TYPE_STRING"
#: Bits of the content hash that go into one version of an application transaction. A version is too
#: small for the whole hash.
_PIECE_BITS = 43
_PIECES = ("content-0", "content-1", "content-2")


def delta_library() -> Any:
    return library("delta", "Writing to Delta Lake", "deltalake")


def app_id(query_id: str, sink: str) -> str:
    """Return the ID that a sink's application transactions have.

    The ID contains the query's ID, because a new checkpoint numbers its micro-batches from 0 again.
    """
    return f"dedup/{query_id}/{sink}"


@dataclass(frozen=True)
class DeltaTarget(LakeTarget):
    """A table of Delta Lake that a sink writes to.

    `shape` is a hash of everything in the table's metadata that data files depend on. If the hash
    changes after tasks have written data files, the sink does not commit the files.
    """

    partition_by: tuple[str, ...]
    shape: str

    def write(self, batch: Batch, slot: int, rows: pa.Table) -> list[DataFile]:
        root = Root(self.options.table)
        sink = hashlib.blake2b(app_id(batch.query_id, batch.sink).encode(), digest_size=8)
        folder = f"dedup-{sink.hexdigest()}/{batch.batch_id}"
        files = []
        keys = [rows.column(name) for name in self.partition_by]
        for values, part in split_rows(self.columns.shown, rows, keys):
            texts = {
                name: _partition_text(self.columns.shown, name, value)
                for name, value in zip(self.partition_by, values, strict=True)
            }
            name = f"{folder}/{slot:05d}-{uuid.uuid4().hex}.parquet"
            buffer = io.BytesIO()
            metadata: list[pq.FileMetaData] = []
            pq.write_table(
                part.drop_columns(list(self.partition_by)), buffer, metadata_collector=metadata
            )
            data = buffer.getvalue()
            root.put_bytes(name, data)
            files.append(DataFile(name, len(data), (texts, stats_of(metadata[0]))))
        return files

    def port(self, batch: Batch, files: Sequence[DataFile]) -> DeltaPort:
        return DeltaPort(self, batch, files)


def _partition_text(shown: str, name: str, value: Any) -> str | None:
    """Return the value of a partition column as text, in the form of Delta's protocol."""
    if value == "":
        raise DataError(
            f"Table {shown} is divided by column {name!r}, and a record has an empty text in it, "
            "which Delta Lake reads back as null. Nothing of its micro-batch is in the table. Give "
            "it another value in the query, or none."
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def stats_of(file: pq.FileMetaData) -> str:
    """Return a file's statistics for Delta's log: the numbers of rows and nulls, but no bounds.

    Bounds are not possible for long texts, times and NaN. If only some columns of a file had
    bounds, delta-rs (1.6) would read the bounds of the other columns as null. A query that filters
    by such a column would then miss the file's rows (`DeltaTable.to_pyarrow_dataset`).
    """
    nulls: dict[str, int] = {}
    for number in range(file.num_columns):
        path = file.schema.column(number).path
        if "." in path:
            continue  # the column is nested, or its name has a dot
        chunks = [file.row_group(n).column(number).statistics for n in range(file.num_row_groups)]
        if all(chunk is not None and chunk.has_null_count for chunk in chunks):
            nulls[path] = sum(chunk.null_count for chunk in chunks)
    return json.dumps({"numRecords": file.num_rows, "nullCount": nulls})


class DeltaPort(LakePort[DeltaTarget]):
    """A handle with which one driver uses a table of Delta Lake."""

    _table: DeltaTable
    _found: int | None

    def __init__(self, target: DeltaTarget, batch: Batch, files: Sequence[DataFile]) -> None:
        super().__init__(target, batch, files)
        #: A random number that identifies this port's commits.
        self._own = secrets.randbits(62)

    def _has_changed(self) -> bool:
        self._table = open_delta(self.target.options)
        seen = _shape_of(self._table), str(self._table.metadata().id)
        return seen != (self.target.shape, self.target.table_id)

    def _marker(self) -> tuple[Marker | None, bool]:
        query_id = self.batch.query_id
        marker, version, self._found = delta_marker(self._table, self.target.options, query_id)
        return marker, marker is None or not _is_rolled_back(self._table, version)

    def _commit(self, marker: Marker) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, RemoveAction

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
            # This copy of the marker is for people. It disappears with the log's old files.
            custom_metadata={"dedup": marker.to_bytes().decode()},
            # Do not retry: `newest` must first read the commits in between.
            max_commit_retries=0,
            app_transactions=[
                Transaction(name, number, marker.time_ms) for name, number in numbers.items()
            ],
        )
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(self.target.partition_by),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            text = self.target.options.without_secrets(error)
            raise Aborted(f"another writer was first ({text})") from None

    def _sizes(self) -> list[int | None]:
        from deltalake.fs import DeltaStorageHandler

        store = pafs.PyFileSystem(DeltaStorageHandler.from_table(self._table._table))
        return [info.size for info in store.get_file_info([file.path for file in self.files])]

    def is_own(self, marker: Marker) -> bool:
        return self._found == self._own

    def delete(self, path: str) -> None:
        Root(self.target.options.table).delete([path])


def delta_marker(
    table: DeltaTable, options: LakeOptions, query_id: str
) -> tuple[Marker | None, int, int | None]:
    """Return a sink's marker, the table version that holds the marker, and the ID of the commit."""
    mine = app_id(query_id, options.name)
    batch_id = table.transaction_version(mine)
    if batch_id is None:
        return None, 0, None
    names = ("version", "commit", "rows", *_PIECES)
    numbers = [table.transaction_version(f"{mine}/{name}") for name in names]
    if None in numbers:
        raise SinkError(
            f"The marker of micro-batch {batch_id} in table {options.table} is incomplete, so the "
            "sink cannot know what was published. Nothing was written.",
            remedy="sink-markers",
        )
    version, commit, rows, *pieces = (int(number or 0) for number in numbers)
    content = sum(piece << (_PIECE_BITS * place) for place, piece in enumerate(pieces))
    marker = Marker(
        query_id=query_id, sink=options.name, slot=BATCH_SLOT, batch_id=batch_id, rows=rows,
        content=f"{content:032x}", run_id="",
    )  # fmt: skip
    return marker, version, commit


def delta_queries(table: DeltaTable, options: LakeOptions) -> set[str]:
    """Return the IDs of the queries whose commits by this sink are in the table's history.

    Raises ConfigError if the history names no query, and lacks the first commits of the table.
    """
    history = table.history()
    texts = (str(entry["dedup"]) for entry in history if "dedup" in entry)
    markers = [Marker.from_bytes(text.encode(), options.table) for text in texts]
    queries = {marker.query_id for marker in markers if marker.sink == options.name}
    if not queries and (oldest := min(entry["version"] for entry in history)):
        raise ConfigError(
            f"The history of table {options.table} begins with version {oldest}, and names no "
            "query of this sink. Give the checkpointLocation, by whose query the marker is found."
        )
    return queries


def _is_rolled_back(table: DeltaTable, version: int) -> bool:
    """Return whether RESTORE has taken the table back to a state before `version`.

    RESTORE removes rows, but keeps application transactions, so the log has to show this.
    """
    later = table.version() - version
    has_rows = {version: True}
    for entry in reversed(table.history(later) if later > 0 else []):
        here = int(entry["version"])
        has_rows[here] = has_rows.get(here - 1, True)
        if entry.get("operation") == "RESTORE":
            to = (entry.get("operationParameters") or {}).get("version")
            # A RESTORE to a time does not name a version.
            has_rows[here] = to is not None and has_rows.get(int(to), int(to) > version)
    return not has_rows.get(table.version(), True)


def delta_target(options: LakeOptions, stream: StructType) -> DeltaTarget:
    """Return the table for a stream's columns, created if missing under the option `create`."""
    shown = options.table
    table = open_delta(options, new_columns(stream) if options.create else None)
    _check_features(shown, table)
    fields, partition_by = table.schema().fields, tuple(table.metadata().partition_columns)
    limited = [field.name for field in fields if _LONGEST in field.metadata]
    why = "the table limits its length, which this sink does not check"
    described = [field.remove_metadata() for field in pa.schema(table.schema().to_arrow())]
    columns = fit_columns(shown, described, stream, dict.fromkeys(limited, why))
    if why := _unfit_division(columns, partition_by):
        raise ConfigError(f"Table {shown} is divided by {why}")
    return DeltaTarget(options, columns, str(table.metadata().id), partition_by, _shape_of(table))


def _unfit_division(columns: TableColumns, partition_by: Sequence[str]) -> str:
    """Return why this sink cannot write the table's partitions, or an empty text if it can."""
    for name in partition_by:
        if name not in columns.given:
            return f"column {name!r}, which the stream lacks. Add it to the stream."
        kind = spark_name(columns.columns.field(name).type)
        if kind not in _PARTITION_KINDS:
            kinds = ", ".join(_PARTITION_KINDS)
            return f"column {name!r} of type {kind}; this sink only writes partitions of {kinds}."
    if set(columns.given) <= set(partition_by):
        return (
            "all columns that the stream has, and a file without a column has no rows. Add another "
            "column of the table to the stream, for example a null of its type."
        )
    return ""


def open_delta(options: LakeOptions, columns: pa.Schema | None = None) -> DeltaTable:
    """Return the newest version of the table, created first from `columns` if it is missing."""
    deltalake = delta_library()
    properties = dict(options.properties) or None
    with options.opening():
        if columns is not None:
            schema = deltalake.Schema.from_arrow(columns)
            deltalake.DeltaTable.create(
                options.table, schema, mode="ignore", storage_options=properties
            )
        try:
            table: DeltaTable = deltalake.DeltaTable(options.table, storage_options=properties)
            return table
        except deltalake.exceptions.TableNotFoundError:
            if columns is None:
                raise options.missing() from None
            raise


def _shape_of(table: DeltaTable) -> str:
    """Return a hash of everything in a table's metadata that data files depend on."""
    metadata, protocol = table.metadata(), table.protocol()
    matter = ("delta.constraints", "delta.columnMapping", _RETENTION)
    parts = [
        table.schema().to_json(),
        metadata.partition_columns,
        sorted(item for item in metadata.configuration.items() if item[0].startswith(matter)),
        protocol.min_writer_version,
        sorted(protocol.writer_features or ()),
    ]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _check_features(shown: str, table: DeltaTable) -> None:
    features = set(table.protocol().writer_features or ())
    settings = table.metadata().configuration
    if _RETENTION in settings:
        raise ConfigError(
            f"Table {shown} forgets application transactions after {settings[_RETENTION]}. They "
            "are this sink's markers, so it would write a micro-batch a second time. "
            f"ALTER TABLE ... UNSET TBLPROPERTIES ('{_RETENTION}'), and start the query again."
        )
    prefix = "delta.constraints."
    checks = [name.removeprefix(prefix) for name in sorted(settings) if name.startswith(prefix)]
    schema = table.schema().to_json()
    for has, what in (
        (bool(features - _KNOWN_FEATURES), f"features {sorted(features - _KNOWN_FEATURES)}"),
        *((f'"{key}"' in schema, what) for key, what in _ON_COLUMNS.items()),
        (settings.get("delta.columnMapping.mode", "none") != "none", "column mapping"),
        (bool(checks), f"the constraint {', '.join(checks)}"),
        (settings.get("delta.enableRowTracking") == "true", "row tracking"),
        (settings.get("delta.enableInCommitTimestamps") == "true", "in-commit timestamps"),
    ):
        if has:
            raise ConfigError(
                f"Table {shown} has {what}, which this sink does not write. Write with Spark's own "
                "connector and dedup.sinks.delta_once, or drop the feature (ALTER TABLE)."
            )
