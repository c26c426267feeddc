"""What came out of a query that was killed again and again, against the truth by brute force."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dedup.sinks.batch_folders import published_batches
from tests.support.oracle import Oracle
from tests.support.small_state import HORIZON_S

COLUMNS = ["id", "at", "n", "verdict"]


@dataclass(frozen=True)
class Outcome:
    """Records in; those lost and those duplicated, whether as rows or by their verdicts.

    Of numbered records, also those with another verdict that has the same effect, and how often
    each verdict and case was right: a campaign proves nothing about a case that it never met.
    """

    records: int
    lost: int
    duplicated: int
    other: int = 0
    cases: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def harm(self) -> int:
        """How many records came out wrong."""
        return self.lost + self.duplicated + self.other


def judge(
    output: Path, given: Sequence[pa.Table], oracle: Oracle, side: Path | None = None
) -> Outcome:
    """Compare the published micro-batches with the input, row by row and verdict by verdict.

    With a side output the duplicates are there, and in it the folder's name is the verdict. Which
    files made a micro-batch is read off its rows: a source that was stopped between its own log and
    the query's gives two at once.
    """
    rows_in = Counter(n for table in given for n in table["n"].to_pylist())
    rows_out: Counter[int] = Counter()
    lost = duplicated = 0
    for batch in published_batches(output):
        table = _published(output, side, batch)
        rows_out.update(table["n"].to_pylist())
        clamp = {at: oracle.clamped(at) for at in set(table["at"].to_pylist())}
        told = Counter(
            (row["id"], clamp[row["at"]], row["verdict"] != "duplicate")
            for row in table.select(["id", "at", "verdict"]).to_pylist()
        )
        if not table.num_rows:
            continue
        right = oracle.verdicts(table)
        lost += sum(n for (*_, goes_on), n in (right - told).items() if goes_on)
        duplicated += sum(n for (*_, goes_on), n in (told - right).items() if goes_on)
    return Outcome(
        rows_in.total(),
        lost + (rows_in - rows_out).total(),
        duplicated + (rows_out - rows_in).total(),
    )


def judge_spike(
    output: Path, given: Sequence[pa.Table], oracle: Oracle, kept_ms: Mapping[int, int]
) -> Outcome:
    """Compare micro-batches with the guarantee of `max_live_ids`.

    A duplicate has a copy that passed within the horizon. A copy that passed within the horizon is
    further back than `kept_ms`, the horizon that the micro-batch reports, where the log has it.
    """
    rows_in = Counter(n for table in given for n in table["n"].to_pylist())
    rows_out: Counter[int] = Counter()
    cases: Counter[str] = Counter()
    passed: defaultdict[str, list[int]] = defaultdict(list)
    lost = duplicated = 0
    for batch in published_batches(output):
        table = _published(output, None, batch)
        rows_out.update(table["n"].to_pylist())
        rows = [(row | {"at": oracle.clamped(row["at"])}) for row in table.to_pylist()]
        goes_on = [row for row in rows if row["verdict"] != "duplicate"]
        for row in sorted(goes_on, key=itemgetter("at")):
            near = [at for at in passed[row["id"]] if abs(row["at"] - at) <= HORIZON_S]
            early = [at for at in near if 1000 * abs(row["at"] - at) > kept_ms.get(batch, -1)]
            duplicated += len(near) > len(early)
            cases["passed early" if batch in kept_ms else "not in the log"] += bool(early)
            passed[row["id"]].append(row["at"])
        lost += sum(
            not any(abs(row["at"] - at) <= HORIZON_S for at in passed[row["id"]])
            for row in rows
            if row["verdict"] == "duplicate"
        )
        oracle.verdicts(table)  # its clock advances
    return Outcome(
        rows_in.total(),
        lost + (rows_in - rows_out).total(),
        duplicated + (rows_out - rows_in).total(),
        cases=dict(cases),
    )


def _published(output: Path, side: Path | None, batch: int) -> pa.Table:
    if side is None:
        return pq.read_table(output / f"batch={batch}", columns=COLUMNS, partitioning=None)
    parts = [(output / f"batch={batch}", "unique")]
    parts += [(path, path.name.partition("=")[2]) for path in (side / f"batch={batch}").iterdir()]
    tables = [pq.read_table(path, columns=COLUMNS[:-1], partitioning=None) for path, _ in parts]
    return pa.concat_tables(
        table.append_column("verdict", pa.array([verdict] * table.num_rows, pa.string()))
        for table, (_, verdict) in zip(tables, parts, strict=True)
    )
