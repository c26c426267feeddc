"""What `dedup catalog`, `sink`, `explain` and `tune` do, for programs.

Results are typed.

A catalog is given by its path, its URI, or a function that returns its file system, as to
`dedup_by_id`. A checkpoint is given by its path, which is then read in the Spark session that is
active, or in one of its own; or as what `read_checkpoint` has read before, for several calls. Each
result has `to_json()`: what the command prints with ``--json``, but for the exit code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dedup.catalog.root import Root
from dedup.core.duration import duration_ms
from dedup.sinks.files import inspection as files_inspection
from dedup.sinks.files.inspection import FilesInspection
from dedup.sinks.formats import inspect_format
from dedup.spark.driver.checkpoint_log import read_progress
from dedup.spark.id_text import id_key
from dedup.tools.repair import damage, inspection
from dedup.tools.repair import explain as explaining
from dedup.tools.repair import vacuum as cleaning
from dedup.tools.repair.adopt import adopt
from dedup.tools.repair.contents import Snapshot
from dedup.tools.repair.damage import Verification, accept_loss
from dedup.tools.repair.explain import Explanation
from dedup.tools.repair.inspection import Inspection, Where, open_root
from dedup.tools.repair.state_reader import Checkpoint, read_checkpoint
from dedup.tools.repair.vacuum import Vacuumed
from dedup.tools.tuning.options import TuneOptions
from dedup.tools.tuning.read_sample import read_sample
from dedup.tools.tuning.tune import tune

__all__ = [
    "TuneOptions", "accept_loss", "adopt", "explain", "inspect", "inspect_files", "inspect_format",
    "inspect_sink", "read_checkpoint", "read_sample", "tune", "vacuum", "verify",
]  # fmt: skip

if TYPE_CHECKING:
    from dedup.sinks.kafka.inspection import KafkaInspection


def inspect(
    root: Where, checkpoint: Checkpoint | None = None, query: str | None = None
) -> Inspection:
    """Return what a catalog holds: of every query, or of one, each shard and each segment.

    Parameters
    ----------
    root
        The catalog.
    checkpoint : optional
        Of a query: only it tells live segments from others.
    query : str, optional
        Its ID. Default: all.

    Raises
    ------
    ConfigError
        If there is no catalog, or no such checkpoint.
    CatalogError
        If the catalog cannot be read.
    """
    place = open_root(root)
    return inspection.inspect(place, _known(place, checkpoint), query)


def verify(
    root: Where, checkpoint: Checkpoint | None = None, query: str | None = None
) -> Verification:
    """Read every file of a catalog, and return what is damaged or missing.

    Parameters and errors are those of `inspect`.
    """
    place = open_root(root)
    return damage.verify(place, _known(place, checkpoint), query)


def vacuum(
    root: Where,
    checkpoint: Checkpoint,
    *,
    older_than: str = "24 hours",
    sole: bool = False,
    dry_run: bool = False,
) -> Vacuumed:
    """Delete what no manifest of a query names: orphans and half-written files.

    Parameters
    ----------
    root
        The catalog.
    checkpoint
        Of the query: what it names stays.
    older_than : str
        Younger files may belong to a micro-batch under way.
    sole : bool
        No other checkpoint of this query is in use: its other runs are over.
    dry_run : bool
        Only say what would be deleted.

    Raises
    ------
    ConfigError
        If there is no catalog or checkpoint, or the query's history has branched.
    CatalogError
        If the catalog cannot be read or written.
    """
    older_than_ms = duration_ms(older_than, option="--older-than")
    place = open_root(root)
    snapshot = read_checkpoint(place, checkpoint)
    return cleaning.vacuum(place, snapshot, older_than_ms=older_than_ms, sole=sole, dry_run=dry_run)


def explain(
    root: Where,
    id: str | Sequence[str],  # noqa: A002
    checkpoint: Checkpoint | None = None,
    query: str | None = None,
) -> Explanation:
    """Return when a record ID was let through, where it is kept, and until when.

    Parameters
    ----------
    root
        The catalog.
    id : str, or sequence of str
        The value of the ID column as text, or of each ID column, in order.
    checkpoint : optional
        Of the query: only it knows the newest IDs.
    query : str, optional
        Its ID, where the catalog holds several and no checkpoint is given.

    Raises
    ------
    ConfigError
        If the values are no ID of this query, or it is not said which query.
    SegmentDamaged
        If a segment that may hold the ID is missing or damaged.
    """
    place = open_root(root)
    snapshot = _known(place, checkpoint)
    asked = explaining.query_to_explain(place, snapshot, query)
    values = [id] if isinstance(id, str) else id
    return explaining.explain(place, asked, values, id_key(asked.id_columns, values), snapshot)


def inspect_files(
    output: str | os.PathLike[str], *, checkpoint: str | None = None
) -> FilesInspection:
    """Return what a folder of files shows of its query, what is staged, what a restart does.

    Parameters
    ----------
    output : path or str
        Of a sink of files or `dedup_parquet`: a path, or an ``s3://`` URI.
    checkpoint : str, optional
        The query's: a path, or a URI that pyarrow knows. What its next start does is then said.

    Raises
    ------
    ConfigError
        If it is no such output, or there is no such checkpoint, or it is another query's.
    CatalogError
        If the storage cannot be reached.
    SinkError
        If what tells of owner or micro-batch is damaged.
    """
    progress = None if checkpoint is None else read_progress(checkpoint)
    return files_inspection.inspect_files(os.fspath(output), progress)


def inspect_sink(
    servers: str,
    topic: str,
    *,
    markers: str | None = None,
    checkpoint: str | None = None,
    query: str | None = None,
    options: Mapping[str, str] | None = None,
) -> KafkaInspection:
    """Return what a Kafka sink has published, what holds its readers back, what a restart does.

    Parameters
    ----------
    servers : str
        Addresses of some brokers, as ``host1:9092,host2:9092``.
    topic : str
        Topic that the sink writes to.
    markers : str, optional
        Topic of its markers. Default: ``<topic>-markers``.
    checkpoint : str, optional
        The query's: a path, or a URI that pyarrow knows. What its next start does is then said.
    query : str, optional
        ID of the only query to be looked at. Default: that of the checkpoint, else all.
    options : mapping of str to str, optional
        Options ``kafka.*`` as of the sink, for security.

    Raises
    ------
    ConfigError
        If the brokers do not answer, refuse the credentials or lack a topic; or if there is no such
        checkpoint.
    SinkError
        If a marker is damaged.
    MissingExtraError
        If confluent-kafka is not installed.
    """
    from dedup.sinks.kafka.inspection import inspect_sink as found
    from dedup.sources.kafka.client_options import client_settings

    settings = client_settings({**(options or {}), "kafka.bootstrap.servers": servers})
    progress = None if checkpoint is None else read_progress(checkpoint)
    return found(settings, topic, markers=markers, query=query, progress=progress)


def _known(root: Root, checkpoint: Checkpoint | None) -> Snapshot | None:
    return None if checkpoint is None else read_checkpoint(root, checkpoint)
