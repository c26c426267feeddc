"""Inspect the output of a sink, and predict what a restart of its query does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dedup.spark.driver.checkpoint_log import read_progress

if TYPE_CHECKING:
    from dedup.sinks.files.inspection import FilesInspection
    from dedup.sinks.kafka.inspection import KafkaInspection


def inspect_files(
    output: str | os.PathLike[str], *, checkpoint: str | None = None
) -> FilesInspection:
    """Return which micro-batches a folder holds, published or staged, and what a restart does.

    Parameters
    ----------
    output : path or str
        Output of the file sink or of `dedup_parquet`: a path, or an ``s3://`` URI.
    checkpoint : str, optional
        Checkpoint of the query: a path, or a URI that pyarrow knows. Needed to predict the next
        start.

    Raises
    ------
    ConfigError
        If the folder is not the output of a file sink or of `dedup_parquet`, or if the checkpoint
        is missing or belongs to another query.
    CatalogError
        If the storage cannot be reached.
    SinkError
        If the owner file or the log of a micro-batch is damaged.
    """
    from dedup.sinks.files.inspection import inspect_files as inspect

    return inspect(os.fspath(output), None if checkpoint is None else read_progress(checkpoint))


def inspect_sink(
    servers: str,
    topic: str,
    *,
    markers: str | None = None,
    checkpoint: str | None = None,
    query: str | None = None,
    options: Mapping[str, str] | None = None,
) -> KafkaInspection:
    """Return what a Kafka sink has published, what blocks its readers, and what a restart does.

    Parameters
    ----------
    servers : str
        Addresses of brokers, such as ``host1:9092,host2:9092``.
    topic : str
        Topic that the sink writes to.
    markers : str, optional
        Topic of the sink's markers. Default: ``<topic>-markers``.
    checkpoint : str, optional
        Checkpoint of the query: a path, or a URI that pyarrow knows. Needed to predict the next
        start.
        query : str, optional
        ID of the only query to inspect. Default: the query of `checkpoint`, or all queries.
    options : mapping of str to str, optional
        The sink's ``kafka.*`` options, such as credentials.

    Raises
    ------
    ConfigError
        If the brokers do not answer, reject the credentials or do not have a topic, or if the
        checkpoint is missing.
    SinkError
        If a marker is damaged.
    MissingExtraError
        If confluent-kafka is not installed.
    """
    from dedup.sinks.kafka.inspection import inspect_sink as inspect
    from dedup.sources.kafka.client_options import client_settings

    settings = client_settings({**(options or {}), "kafka.bootstrap.servers": servers})
    progress = None if checkpoint is None else read_progress(checkpoint)
    return inspect(settings, topic, markers=markers, query=query, progress=progress)
