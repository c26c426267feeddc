"""Outputs whose micro-batches were compacted: read, looked into and continued."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dedup import tools
from dedup.sinks import published_files
from tests.files_sink.folder_sink import FolderSink, once, seen_locally


def test_a_micro_batch_whose_files_were_compacted_counts_as_published(tmp_path: Path) -> None:
    output = tmp_path / "out"
    sink = FolderSink(output, tmp_path / "checkpoint")
    sink.batch("run1", 0, range(10), range(10, 20))
    files = sorted((output / "batch=0").iterdir())
    rows = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    for file in files:
        file.unlink()
    pq.write_table(rows, output / "batch=0" / "part-compacted.parquet")
    found = tools.inspect_output("dedup_files", {"path": str(output)})
    assert (found.status, found.batch_id, found.rows) == ("ok", 0, 20)
    sink = FolderSink(output, tmp_path / "checkpoint")
    assert len(published_files(output)) == 1
    sink.batch("run2", 0, range(10), range(10, 20))
    sink.batch("run2", 1, [20])
    assert seen_locally(str(output)) == once(21)
    found = tools.inspect_output("dedup_files", {"path": str(output)})
    assert (found.status, found.batch_id, found.staged) == ("ok", 1, ())
