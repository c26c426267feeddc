"""Flink's own de-duplication over a folder of Parquet files, as one process.

python -m benchmarks.flink SOURCE OUTPUT WORK CORES MEMORY SCHEMA

The query is the one that Flink's manual gives ("Deduplication"): the first row of each ID by
processing time, which the planner turns into one flag of keyed state per ID, with a time to live.
Its jars come from Maven Central through Ivy, which PySpark has; Hadoop's, which Parquet needs, are
PySpark's own. py4j drives a separate JVM, so nothing has to be compiled.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from benchmarks.harness import HORIZON
from tests.support.jars import alone, maven_jars

VERSION = "2.3.0"
_NAMES = (
    "flink-clients", "flink-table-api-java-bridge", "flink-table-runtime",
    "flink-connector-files", "flink-statebackend-rocksdb",
)  # fmt: skip
#: Whole in themselves.
_BUNDLES = ("flink-table-planner-loader", "flink-sql-parquet")
_WANTED = (
    *(f"org.apache.flink:{name}:{VERSION}" for name in _NAMES),
    *(alone(f"org.apache.flink:{name}:{VERSION}") for name in _BUNDLES),
)
_OF_PYSPARK = ("hadoop-client-api", "hadoop-client-runtime", "jcl-over-slf4j", "py4j")
#: Packages of Java that Flink's own start scripts open.
_OPENED = ("lang", "util", "nio", "time")
#: From Flink's manual: "Performance Tuning" of the Table API, "Large State Tuning", and the options
#: of the RocksDB state backend.
SETTINGS = {
    "execution.runtime-mode": "streaming",
    "pipeline.object-reuse": "true",
    "table.exec.state.ttl": HORIZON.replace(" days", " d"),
    "state.backend.type": "rocksdb",
    "state.backend.rocksdb.use-bloom-filter": "true",
    "state.backend.rocksdb.predefined-options": "FLASH_SSD_OPTIMIZED",
    "taskmanager.memory.managed.size": "1g",
    "execution.checkpointing.interval": "10 s",
    "execution.checkpointing.incremental": "true",
}
#: Types that Spark's DDL and Flink's name otherwise.
_TYPES = {"long": "BIGINT", "timestamp": "TIMESTAMP_LTZ(6)", "binary": "BYTES"}


def jars() -> str:
    """The classpath; see `maven_jars`."""
    bundled = Path(pyspark.__file__).with_name("jars")
    own = [str(next(bundled.glob(f"{name}-*.jar"))) for name in _OF_PYSPARK]
    return os.pathsep.join([f"{maven_jars(_WANTED)}/*", *own])


def statements(source: str, output: str, schema: str) -> list[str]:
    """Two tables, and the query between them."""
    pairs = [column.split() for column in schema.split(", ")]
    names = ", ".join(f"`{name}`" for name, _ in pairs)
    types = ", ".join(f"`{name}` {_TYPES.get(kind, kind)}" for name, kind in pairs)
    files = "'connector' = 'filesystem', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'"
    first = "ROW_NUMBER() OVER (PARTITION BY event_id ORDER BY arrived ASC) AS nth"
    return [
        f"CREATE TABLE events ({types}, arrived AS PROCTIME()) WITH ({files}, 'path' = '{source}')",
        f"CREATE TABLE firsts ({types}) WITH ({files}, 'path' = '{output}')",
        f"INSERT INTO firsts SELECT {names} FROM (SELECT *, {first} FROM events) WHERE nth = 1",
    ]


def session(work: str, cores: str, memory: str) -> Any:
    """Flink's `TableEnvironment` in a JVM that ends with this process."""
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
    home = os.environ.get("JAVA_HOME")
    port = launch_gateway(
        classpath=jars(),
        java_path=str(Path(home, "bin", "java")) if home else "java",
        javaopts=[f"-Xmx{memory}", *opened],
        die_on_exit=True,
        redirect_stderr=sys.stderr,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    flink = gateway.jvm.org.apache.flink
    settings = flink.configuration.Configuration()
    where = {
        "parallelism.default": cores,
        "execution.checkpointing.dir": f"file://{work}/checkpoints",
        "io.tmp.dirs": work,
    }
    for name, value in {**SETTINGS, **where}.items():
        settings.setString(name, value)
    return flink.table.api.TableEnvironment.create(settings)


def main() -> None:
    source, output, work, cores, memory, schema = sys.argv[1:]
    try:
        tables = session(work, cores, memory)
    except OSError as error:
        raise SystemExit(f"Flink needs Java 17 and Maven Central: {error}") from None
    *definitions, insertion = statements(source, output, schema)
    for definition in definitions:
        tables.executeSql(definition)
    getattr(tables.executeSql(insertion), "await")()  # which Python does not allow as a name


if __name__ == "__main__":
    main()
