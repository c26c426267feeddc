"""Damage to Spark's state files between two starts: right by the oracle, or a useful error.

On a local disk Hadoop keeps a checksum beside each state file; object stores have none, so the
tests remove it: Spark's formats and ours are on their own. test_damage.py and the model do the same
to the files at the root and in the local cache; here a query meets one damage of each kind.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dedup import BatchMetrics, DedupListener
from dedup.cli.failures import explain
from dedup.errors import CatalogError, DedupError, StateError
from dedup.tools.watch.health import Status
from tests.damage.harm import Harm, Outcomes, some
from tests.spark import conftest as spark_conftest
from tests.support.oracle import Oracle
from tests.support.small_state import HORIZON_S, LATENESS_S, query, tables
from tests.support.spark_query import Query, Run, listening
from tests.support.state_stores import STORES
from tests.support.waiting import wait_until

spark = spark_conftest.spark

BATCHES = 6
HDFS = "HDFS-backed"
#: What Spark says of state that it cannot read; it names the file or the version.
_SPARK_SAYS = re.compile(
    r"CANNOT_LOAD_STATE_STORE|FAILED_READ|CHECKPOINT_|STATE_STORE|Error reading delta file|"
    r"Error reading snapshot file|does not exist|doesn't exist|checksum|Corrupt|corrupt|"
    r"Stream is corrupted|EOFException|key length|value length|ZipException|RocksDB|\.zip|"
    r"\.changelog|\.delta"
)
FEW = [(HDFS, 1)]
CASES = [
    pytest.param(*case, marks=() if case in FEW else pytest.mark.slow, id=f"{case[0]}-{case[1]}")
    for case in product((HDFS, *STORES), range(56))
]
#: Spark's files do not say whose they are, so another partition's shows when it was used.
TOLD = "told afterwards"
#: Harm to the newest ones, which the next micro-batch reads.
NEWEST = 8


@pytest.fixture(scope="module")
def finished(
    shared_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Query]]:
    """Six micro-batches at their end, by state store; made when first asked for."""
    made: dict[str, Query] = {}
    runs: dict[str, Run] = {}

    class Made(dict[str, Query]):
        def __missing__(self, store: str) -> Query:
            session = shared_spark.newSession()
            for name, value in STORES.get(store, {}).items():
                session.conf.set(name, value)
            folder = tmp_path_factory.mktemp("done")
            given = query(session, folder, tables(BATCHES + 2)[:BATCHES])
            runs[store] = given.run()
            self[store] = given
            return given

    yield Made(made)
    for store, run in runs.items():
        Oracle(HORIZON_S, LATENESS_S).check(tables(BATCHES + 2)[:BATCHES], run)
        assert len(run.rows) == BATCHES, store


@pytest.mark.parametrize(("store", "nth"), CASES)
def test_a_query_with_damaged_state_gives_the_right_rows_or_stops(
    finished: dict[str, Query], tmp_path: Path, store: str, nth: int, seed: int, outcomes: Outcomes
) -> None:
    rng = random.Random(f"{seed} {store} {nth}")
    before = finished[store]
    again = before.copy(tmp_path)
    paths = newest_state(again)
    path = rng.choice(paths[:NEWEST])
    others = {other.name: other.read_bytes() for other in paths if other != path}
    harm = rng.choice(list(some(path.read_bytes(), dict(list(others.items())[:3]), rng, 1)))
    do(path, harm)

    given = tables(BATCHES + 2)
    # All copies share the input folder, so fill it once.
    while again.added < len(given):
        again.add_table(given[again.added])
    before.added = again.added
    outcome = went_on(again, given, f"{path.name}, {harm}")
    assert outcome != TOLD or harm.kind == "swapped", f"{path.name}, {harm}"
    outcomes.counts[f"{store}, end to end", harm.kind, outcome] += 1
    assert outcome != "WRONG", f"{path.name}, {harm}"


@pytest.mark.parametrize(
    "store", [HDFS, pytest.param("rocksdb v1 changelog", marks=pytest.mark.slow)]
)
def test_the_state_of_another_partition_is_reported(
    finished: dict[str, Query], tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    again = finished[store].copy(tmp_path)
    one, other = newest_state(again)[:2]
    assert (one.name, one.parent.name) == (other.name, "0")
    do(one, Harm("swapped", "", other.read_bytes()))
    while again.added < BATCHES + 1:
        again.add_table(tables(BATCHES + 1)[again.added])
    finished[store].added = again.added
    observed: list[BatchMetrics] = []
    listener = DedupListener(observed.append)
    with listening(again.spark, listener):
        replayed = again.run()
        wait_until(lambda: observed)
    assert replayed.metrics[0].epochs_apart == 1
    with pytest.raises(StateError, match="was 1 micro-batches older"):
        replayed.metrics[0].check_together()
    assert "state of one shard was 1 micro-batches older" in caplog.text
    (watched,) = listener.watched()
    assert watched.health.status is Status.REWOUND


@pytest.mark.parametrize(
    ("name", "outcome"),
    [("*.sst", "refused: SegmentDamaged"), ("*.filter", "right"),
     ("certificate.json", "refused: CatalogError")],
)  # fmt: skip
def test_damage_at_the_root_is_repaired_or_stops_the_query(
    finished: dict[str, Query], tmp_path: Path, name: str, outcome: str
) -> None:
    """Every such file is damaged. If an error stops the query, it continues with intact files."""
    again = finished[HDFS].copy(tmp_path)
    again.options["cache_dir"] = str(tmp_path / "cache")
    given = tables(BATCHES + 2)
    while again.added < len(given):
        again.add_table(given[again.added])
    finished[HDFS].added = again.added
    whole = {path: path.read_bytes() for path in again.catalog.rglob(name)}
    assert whole
    for path, data in whole.items():
        at = len(data) // 2
        do(
            path,
            Harm("flipped byte", f"at {at}", data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]),
        )
    assert went_on(again, given, name) == outcome
    if outcome != "right":
        for path, data in whole.items():
            path.write_bytes(data)
        assert went_on(again, given, name) == "right"


def went_on(again: Query, given: list[pa.Table], harm: str) -> str:
    """What became of the query: the error that stopped it well, or right, or wrong."""
    try:
        replayed = again.run()
    except StreamingQueryException as error:
        return f"refused: {stopped_well(error, harm)}"
    assert sorted(replayed.rows) == [BATCHES, BATCHES + 1], harm
    if rest_is_right(given, replayed):
        return "right"
    return TOLD if any(metrics.epochs_apart for metrics in replayed.metrics) else "WRONG"


def newest_state(again: Query) -> list[Path]:
    """Spark's files of the last state of each partition, without checksum files."""
    newest: list[Path] = []
    for folder in sorted((again.checkpoint / "state" / "0").glob("[0-9]*")):
        for crc in folder.rglob(".*.crc"):
            crc.unlink()
        numbered = [
            (int(found[1]), path)
            for path in folder.iterdir()
            if path.is_file() and (found := re.match(r"(\d+)[._]", path.name))
        ]
        last = max(number for number, _ in numbered)
        newest += [path for number, path in numbered if number == last]
        newest += sorted(path for path in folder.rglob("*.sst"))
    return newest


def do(path: Path, harm: Harm) -> None:
    before = path.read_bytes()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.unlink()
    if harm.data is not None:
        path.write_bytes(harm.data)
    assert (path.read_bytes() if path.exists() else None) != before, f"{harm} changed nothing"


def stopped_well(error: StreamingQueryException, harm: str) -> str:
    """Ours, with class and remedy; or Spark's own about its own file: whose."""
    said = explain(error)
    kinds = {each.__name__ for each in _subclasses(DedupError)}
    if said.kind in kinds:
        assert said.kind in {each.__name__ for each in (*_subclasses(CatalogError), StateError)}
        assert re.search("restore|Restore|start|forget|adopt", said.message), said.message
        return said.kind
    assert _SPARK_SAYS.search(str(error)), f"{harm}: {said}\n{str(error)[:3000]}"
    return "Spark's own"


def _subclasses(base: type) -> list[type]:
    return [base, *(found for each in base.__subclasses__() for found in _subclasses(each))]


def rest_is_right(given: list[pa.Table], replayed: Run) -> bool:
    """Whether the last two micro-batches emit what an oracle says that saw all."""
    oracle = Oracle(HORIZON_S, LATENESS_S)
    for table in given[:BATCHES]:
        oracle.verdicts(table)
    for batch in (BATCHES, BATCHES + 1):
        wanted = oracle.verdicts(given[batch])
        told = Counter((row["id"], row["verdict"] != "duplicate") for row in replayed.rows[batch])
        by_id: Counter[tuple[str, bool]] = Counter()
        for (name, _, goes_on), count in wanted.items():
            by_id[name, goes_on] += count
        if told != by_id:
            return False
    return True
