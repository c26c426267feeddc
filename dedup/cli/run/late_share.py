"""How many of a run's records are late: more than a few mean an order that nobody chose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dedup.cli.run.observed import observed_so_far
from dedup.cli.run.run_options import RunOptions
from dedup.errors import DataError
from dedup.sinks.batch_folders import published_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ORDERS = {"time": "modification times", "name": "names"}


@dataclass(slots=True)
class LateShare:
    """Compares the late records of a run with ``--max-late``."""

    spark: SparkSession
    options: RunOptions
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def check(self, batch_id: int) -> None:
        """Refuse to publish a micro-batch with which too many records of the run are late.

        Raises
        ------
        DataError
            With their number, and what to do.
        """
        if batch_id in published_batches(self.options.output):
            return
        found = observed_so_far(self.spark, self.options.checkpoint, "dedup")
        self.counts[batch_id] = found.get("late", 0), found.get("records_in", 0)
        late, records = map(sum, zip(*self.counts.values(), strict=True))
        told = self.of(late, records)
        if told is not None:
            raise DataError(
                f"{told} Nothing of micro-batch {batch_id} is published, since --late drop would "
                "lose these records. Give --late emit to keep them, or --max-late "
                f"{-(-100 * late // records)} or more to lose them, and run again.",
                remedy="late",
            )

    def of(self, late: int, records: int) -> str | None:
        """Say that too many records are late, why, and what to do; None if they are not."""
        options = self.options
        if 100 * late <= options.max_late * records:
            return None
        other = " --order-files name," if options.order_files == "time" else ""
        return (
            f"{late / records:.1%} of this run's records are late ({late:,} of {records:,}): "
            f"their {options.timestamp} lies further behind the newest one before them than "
            f"--lateness allows. The files were read in the order of their "
            f"{_ORDERS[options.order_files]}. If that is not the order of {options.timestamp}, "
            f"run into a new --output with{other} --source-partition for each producer, or a "
            "longer --lateness."
        )
