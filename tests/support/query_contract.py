"""The contract of every sink for Spark queries: a test class inherits its cases."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from dedup.testing import faults
from dedup.testing.sinks import once
from dedup.tools import rebuild, rescale
from tests.support.file_query import FileQuery
from tests.support.needs import needs_rescale, needs_spark_4
from tests.support.state_stores import ROCKSDB, configured


class QueryContract:
    """What holds for a query into every sink; a test class gives the fixture `query`."""

    def test_every_micro_batch_is_there_once(self, query: FileQuery, tmp_path: Path) -> None:
        """A replay runs the operator's plan to its end, although its rows are already published."""
        query.dedup(tmp_path / "catalog", shards=2)
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
        query.dedup(tmp_path / "catalog", shards=4)
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
    @pytest.mark.slow
    def test_a_rebuilt_query_loses_and_repeats_nothing(
        self, query: FileQuery, tmp_path: Path
    ) -> None:
        """Its micro-batches count from 0 again, so the sink has another name."""
        query.dedup(tmp_path / "catalog", shards=2)
        query.numbers(range(30), range(20, 50))
        query.run()
        new = tmp_path / "new-catalog", tmp_path / "new-checkpoint"
        rebuild(tmp_path / "catalog", query.checkpoint, *new, shards=3, spark=query.spark)
        query.begin_again(new[1])
        query.dedup(new[0], shards=3)
        query.numbers(range(40, 70), range(60, 90))
        query.run()
        query.forget_commit()
        query.run()
        assert query.found() == once(90)

    @needs_spark_4
    def test_the_format_of_a_sink_rejects_batch_reads_and_writes(self, query: FileQuery) -> None:
        with pytest.raises(Exception, match="publishes the micro-batches"):
            query.spark.range(3).write.format(query.sink).mode("append").save()
        with pytest.raises(Exception, match="is a sink"):
            query.spark.read.format(query.sink).load()
