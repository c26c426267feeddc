"""Damage between two starts of a real query: right by the oracle, or stopped by a useful error.

Files at the root, and Spark's own state files. On a local disk Hadoop keeps a checksum beside each
state file; object stores have none, so it is taken away: Spark's formats and ours are on their own.
"""

from __future__ import annotations

import importlib.util
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from harm import Harm, some
from oracle import Oracle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from small_state import HORIZON_S, LATENESS_S, query, tables
from support import Query, Run
from test_operator_replay import STORES

from dedup.catalog.layout import parse
from dedup.cli.failures import explain
from dedup.errors import CatalogError, DedupError, StateError


def _spark_fixtures() -> object:
    path = Path(__file__).parent.parent / "spark" / "conftest.py"
    spec = importlib.util.spec_from_file_location("spark_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_fixtures = _spark_fixtures()
_session, spark = _fixtures._session, _fixtures.spark  # type: ignore[attr-defined]

BATCHES = 6
HDFS = "HDFS-backed"
#: What Spark says of state that it cannot read; it names the file or the version.
_SPARK_SAYS = re.compile(
    r"CANNOT_LOAD_STATE_STORE|FAILED_READ|CHECKPOINT_|STATE_STORE|Error reading delta file|"
    r"Error reading snapshot file|does not exist|doesn't exist|checksum|Corrupt|corrupt|"
    r"Stream is corrupted|EOFException|key length|value length|ZipException|RocksDB|\.zip|"
    r"\.changelog|\.delta",
)
ROOT_KINDS = ("segment", "sidecar", "certificate", "manifest", "run")
FEW = [(HDFS, 0), (HDFS, 1)]
MANY = [
    *((kind, nth) for kind in ROOT_KINDS for nth in range(8)),
    *((store, nth) for store in (HDFS, *STORES) for nth in range(12)),
]
CASES = [
    pytest.param(*case, marks=() if case in FEW else pytest.mark.slow, id=f"{case[0]}-{case[1]}")
    for case in MANY
]


@pytest.fixture(scope="module")
def finished(
    _session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Query]]:
    """Six micro-batches at their end, by state store; made when first asked for."""
    made: dict[str, Query] = {}
    runs: dict[str, Run] = {}

    class Made(dict[str, Query]):
        def __missing__(self, store: str) -> Query:
            session = _session.newSession()
            session.conf.set("spark.sql.shuffle.partitions", "2")
            for name, value in STORES.get(store, {}).items():
                session.conf.set(name, value)
            given = query(session, tmp_path_factory.mktemp("done"), tables(BATCHES + 2)[:BATCHES])
            runs[store] = given.run()
            self[store] = given
            return given

    yield Made(made)
    for store, run in runs.items():
        Oracle(HORIZON_S, LATENESS_S).check(tables(BATCHES + 2)[:BATCHES], run)
        assert len(run.rows) == BATCHES, store


@pytest.mark.parametrize(("what", "nth"), CASES)
def test_right_or_stopped(
    finished: dict[str, Query], tmp_path: Path, what: str, nth: int, seed: int
) -> None:
    rng = random.Random(f"{seed} {what} {nth}")
    store = what if what == HDFS or what in STORES else HDFS
    before = finished[store]
    again = before.copy(tmp_path)
    paths = at_root(again, what) if what in ROOT_KINDS else newest_state(again)
    assert paths, f"no {what}"
    path = paths[nth % len(paths)]
    others = {other.name: other.read_bytes() for other in paths if other != path}
    every = list(some(path.read_bytes(), dict(list(others.items())[:3]), rng, 1))
    harm = every[nth % len(every)]
    do(path, harm)

    given = tables(BATCHES + 2)
    # The input folder is shared by all copies, so it is filled once.
    while again.added < len(given):
        again.add_table(given[again.added])
    before.added = again.added
    replayed = Run()
    try:
        replayed = again.run()
    except StreamingQueryException as error:
        stopped_well(error, what, f"{path.name}, {harm}")
        return
    assert sorted(replayed.rows) == [BATCHES, BATCHES + 1], f"{path.name}, {harm}"
    try:
        check_rest(given, replayed)
    except AssertionError:
        if what == HDFS and harm.kind == "swapped":
            pytest.xfail("another partition's delta leaves a state that is one micro-batch old")
        raise


def at_root(again: Query, kind: str) -> list[Path]:
    """Files of a kind, the newest first: those of live buckets."""
    found = [
        path
        for path in again.catalog.rglob("*")
        if path.is_file() and parse(path.relative_to(again.catalog).as_posix()).kind == kind
    ]
    return sorted(found, reverse=True)


def newest_state(again: Query) -> list[Path]:
    """Spark's files of the last state of each partition, without what stands beside them."""
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
    for crc in (path.with_name(f".{path.name}.crc"),):
        crc.unlink(missing_ok=True)
    path.unlink()
    if harm.data is not None:
        path.write_bytes(harm.data)
    assert (path.read_bytes() if path.exists() else None) != before, f"{harm} changed nothing"


def stopped_well(error: StreamingQueryException, what: str, harm: str) -> None:
    """Ours, with class and remedy; or Spark's own about its own file."""
    said = explain(error)
    kinds = {each.__name__ for each in _subclasses(DedupError)}
    if said.kind in kinds:
        assert said.kind in {each.__name__ for each in (*_subclasses(CatalogError), StateError)}
        assert re.search("restore|Restore|start|forget|adopt", said.message), said.message
        return
    assert what not in ROOT_KINDS, f"{harm}: {said}"
    assert _SPARK_SAYS.search(str(error)), f"{harm}: {said}\n{str(error)[:3000]}"


def _subclasses(base: type) -> list[type]:
    return [base, *(found for each in base.__subclasses__() for found in _subclasses(each))]


def check_rest(given: list[pa.Table], replayed: Run) -> None:
    """What the last two micro-batches emit, by an oracle that saw all."""
    oracle = Oracle(HORIZON_S, LATENESS_S)
    for table in given[:BATCHES]:
        oracle.verdicts(table)
    for batch in (BATCHES, BATCHES + 1):
        wanted = oracle.verdicts(given[batch])
        told: Counter[tuple[str, bool]] = Counter()
        for row in replayed.rows[batch]:
            told[row["id"], row["verdict"] != "duplicate"] += 1
        by_id: Counter[tuple[str, bool]] = Counter()
        for (name, _, goes_on), count in wanted.items():
            by_id[name, goes_on] += count
        assert told == by_id, f"micro-batch {batch}"
