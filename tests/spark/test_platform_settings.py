"""Settings that platforms fix, and that no other test has: the verdicts stay the same."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.processes import run_python

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PLATFORMS = {
    "RocksDB, no daemon, no ANSI, no home": {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.python.use.daemon": "false",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "HOME": "/nowhere",
    },
    "one task per process, in memory": {
        "spark.python.daemon.module": "pyspark.daemon",
        "spark.python.worker.reuse": "false",
        "spark.driver.extraJavaOptions": "-Duser.timezone=America/St_Johns -Xss2m",
        "spark.local.dir": "/dev/shm",
        "spark.sql.ansi.enabled": "true",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_settings_of_a_platform_change_no_verdict(tmp_path: Path, platform: str) -> None:
    settings = dict(PLATFORMS[platform])
    home = settings.pop("HOME", os.environ.get("HOME", "/"))
    code = "import sys\nfrom tests.spark.test_platform_settings import judge\njudge(*sys.argv[1:])"
    found = run_python(code, tmp_path, json.dumps(settings), HOME=home)
    assert found == 3


def judge(place: str, settings: str) -> None:
    """Run a query in its own session, and compare it with the oracle."""
    from pyspark.sql import SparkSession

    from tests.support.oracle import Oracle
    from tests.support.quick_spark import QUICK_SESSION
    from tests.support.small_state import HORIZON_S, LATENESS_S, OPTIONS, tables
    from tests.support.spark_query import Query

    builder = SparkSession.builder.master("local[2]").config(map={**QUICK_SESSION})
    spark = builder.config(map=json.loads(settings)).getOrCreate()
    query = Query(spark, Path(place), {**OPTIONS})
    given = tables(3)
    for table in given:
        query.add_table(table)
    run = query.run()
    Oracle(HORIZON_S, LATENESS_S).check(given, run)
    print(len(run.metrics))
