"""The contract of every sink for Spark queries: a test class inherits its cases."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from dedup import dedup_by_id
from dedup.testing import faults
from dedup.testing.sinks import once
from dedup.tools import rescale
from tests.support.file_query import FileQuery
from tests.support.needs import needs_rescale, needs_spark_4
from tests.support.state_stores import ROCKSDB, configured


class QueryContract:
    """What holds for a query into every sink; a test class gives the fixture `query`."""

    def test_every_micro_batch_is_there_once(self, query: FileQuery, tmp_path: Path) -> None:
        """A replay runs the operator's plan to its end, although its rows are already published."""
        operator = dedup_by_id("n", horizon="1 hour", catalog=str(tmp_path / "catalog"), shards=2)
        query.change = lambda rows: rows.transform(operator)
        query.numbers(range(30), range(20, 50))
        query.run()
        assert query.forget_commit() == 1  # Spark runs the last micro-batch again
        query.numbers(range(40, 60))
        query.run()
        assert query.found() == once(60)

    @pytest.mark.slow
    def test_kills_at_every_step_lose_and_repeat_nothing(
        self, query: FileQuery, fault_folder: Path
    ) -> None:
        self.kill(query, fault_folder, query.steps)

    def kill(self, query: FileQuery, fault_folder: Path, steps: Sequence[str]) -> None:
        """Spark runs a task again; a query whose driver's part dies ends, and is started again."""
        for number, step in enumerate(steps):
            starts = range(30 * number, 30 * number + 30, 10)
            first, second, third = (range(n, n + 10) for n in starts)
            query.numbers(first)
            running = query.start(once=False)
            running.processAllAvailable()
            # From now on tasks publish on their own, if the sink lets them.
            faults.arm(fault_folder, step, "kill")
            query.numbers(second)
            with suppress(StreamingQueryException):
                running.processAllAvailable()
            running.stop()
            query.numbers(third)
            query.run_to_the_end()
            assert query.found() == once(30 * number + 30), step
            assert len(faults.fired(fault_folder)) == number + 1, step

    @needs_rescale
    @pytest.mark.slow
    def test_other_state_partitions_lose_and_repeat_nothing(
        self, query: FileQuery, tmp_path: Path
    ) -> None:
        """Each change uses up a micro-batch that the sink never sees."""
        operator = dedup_by_id("n", horizon="1 hour", catalog=str(tmp_path / "catalog"), shards=4)
        query.change = lambda rows: rows.transform(operator)
        with configured(query.spark, ROCKSDB):
            query.numbers(range(30), range(20, 50))
            query.run()
            for partitions, first in ((4, 40), (1, 70)):
                rescale(query.checkpoint, partitions, query.spark)
                query.numbers(range(first, first + 40))
                query.run()
                query.forget_commit()
                query.numbers(range(first, first + 40))
                query.run()
        assert query.found() == once(110)

    @needs_spark_4
    def test_the_format_of_a_sink_rejects_batch_reads_and_writes(self, query: FileQuery) -> None:
        with pytest.raises(Exception, match="publishes the micro-batches"):
            query.spark.range(3).write.format(query.sink).mode("append").save()
        with pytest.raises(Exception, match="is a sink"):
            query.spark.read.format(query.sink).load()
