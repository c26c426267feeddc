"""What a sink has published into a table of Delta Lake or Iceberg. Nothing is changed."""

from __future__ import annotations

from dedup.errors import ConfigError
from dedup.sinks.inspection import SinkInspection, SlotState, sink_states
from dedup.sinks.lakehouse.delta import delta_marker, open_delta
from dedup.sinks.lakehouse.iceberg import iceberg_library, iceberg_marker, open_iceberg
from dedup.sinks.lakehouse.options import DELTA, LakeOptions
from dedup.spark.driver.checkpoint_log import Progress


def inspect_lake(options: LakeOptions, progress: Progress | None) -> SinkInspection:
    """Return what the query of a checkpoint has published through a sink of these options.

    Raises
    ------
    ConfigError
        If the table or the checkpoint does not exist.
    SinkError
        If the table cannot be read, or its marker is damaged.
    """
    if progress is None:
        raise ConfigError("Markers are found by the query's ID: give the checkpointLocation.")
    if options.format_name == DELTA:
        table = open_delta(options)
        marker = delta_marker(table, options.table, progress.query_id, options.name)[0]
    else:
        iceberg_library()
        marker = iceberg_marker(
            open_iceberg(options), options.table, progress.query_id, options.name
        )
    found = [] if marker is None else [SlotState(marker=marker)]
    return SinkInspection(sinks=sink_states(found, progress))
