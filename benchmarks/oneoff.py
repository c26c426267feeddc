"""The same rows de-duplicated once, in memory, by DuckDB or Polars, as one process.

python -m benchmarks.oneoff {duckdb,polars} SOURCE OUTPUT WORK CORES FORMAT

Neither remembers anything for the next run. Both have all memory of the machine, which is their
default, and DuckDB a folder to spill to.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

#: From DuckDB's manual, "Tuning Workloads" and "COPY".
DUCKDB = {"preserve_insertion_order": "false"}
_DUCKDB_COPY = "PER_THREAD_OUTPUT true, FORMAT"
_OPTIONS = {"parquet": ", COMPRESSION snappy", "csv": ", HEADER true", "json": ""}
#: From Polars' manual, `LazyFrame.unique`: any copy, in any order, is the least work.
POLARS: dict[str, Any] = {"keep": "any", "maintain_order": False}


def duckdb(source: Path, output: Path, work: Path, cores: int, file_format: str) -> None:
    """The query that DuckDB's manual gives for the first row of each group."""
    import duckdb as engine

    with engine.connect() as db:
        for name, value in {**DUCKDB, "threads": cores, "temp_directory": f"'{work}'"}.items():
            db.execute(f"SET {name} = {value}")
        files = f"read_{file_format}('{source}/*.{file_format}')"
        rows = f"SELECT DISTINCT ON (event_id) * FROM {files}"
        written = f"{_DUCKDB_COPY} {file_format}{_OPTIONS[file_format]}"
        db.execute(f"COPY ({rows}) TO '{output}' ({written})")


def polars(source: Path, output: Path, work: Path, cores: int, file_format: str) -> None:
    """The streaming engine, from scan to sink of Parquet."""
    assert file_format == "parquet"
    os.environ["POLARS_MAX_THREADS"] = str(cores)
    import polars as engine

    rows = engine.scan_parquet(source / "*.parquet").unique("event_id", **POLARS)
    to = output / "unique.parquet"
    rows.sink_parquet(
        to, compression="snappy", maintain_order=False, mkdir=True, engine="streaming"
    )


def main() -> None:
    which, source, output, work, cores, file_format = sys.argv[1:]
    run = {"duckdb": duckdb, "polars": polars}[which]
    run(Path(source), Path(output), Path(work), int(cores), file_format)


if __name__ == "__main__":
    main()
