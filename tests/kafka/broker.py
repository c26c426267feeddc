"""A real Kafka broker on this machine, of one node, and Spark's connector for it.

The jars come from Maven Central through Ivy, which PySpark has; nothing else needs installing.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.support.processes import python

#: Spark's connector without what it would pull in: Central lags PyPI, and this set runs on 4.3.0.
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.0",
    "org.apache.commons:commons-pool2:2.12.0",
)
BROKER, LOGGER = "org.apache.kafka:kafka_2.13:4.1.0", "org.slf4j:slf4j-simple:1.7.36"
#: Kept for the next run on this machine.
JARS = Path(tempfile.gettempdir()) / "dedup-test-jars"
_START_TIMEOUT_S = 60.0
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
_RESOLVE = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.jars.ivy", sys.argv[1]).getOrCreate()
for name in sys.argv[2:]:
    spark.sql(f"ADD JAR 'ivy://{name}'")
"""


def fetch_jars() -> Path:
    """Return the folder of the jars, fetched on the first call.

    Raises
    ------
    OSError
        When they are not to be had, saying why.
    """
    ready, jars = JARS / "ready", JARS / "jars"
    if not ready.exists():
        wanted = [f"{name}?transitive=false" for name in (*CONNECTOR, LOGGER)]
        done = python("-c", _RESOLVE, JARS, *wanted, BROKER, timeout_s=280)
        if done.returncode:
            raise OSError(done.stderr.strip().splitlines()[-1])
        ready.touch()
    return jars


def connector_jars() -> str:
    """The connector's jars as ``spark.jars`` takes them."""
    jars = fetch_jars()
    return ",".join(str(jars / _file(name)) for name in CONNECTOR)


def _file(coordinates: str) -> str:
    group, name, version = coordinates.split(":")
    return f"{group}_{name}-{version}.jar"


@contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """Start a broker; gives its address."""
    jars = [p for p in fetch_jars().glob("*.jar") if p.name not in map(_file, CONNECTOR)]
    # Ivy leaves out what Spark has already.
    jars += (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")
    classpath = ":".join(map(str, jars))
    port, controller = _free_port(), _free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder / "logs",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "auto.create.topics.enable": "false",
    }
    properties = folder / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = [shutil.which("java") or "java", "-Xmx512m", "-cp", classpath]
    format_disk = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)]
    done = subprocess.run([*java, *format_disk], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    with open(folder / "broker.log", "w") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", properties], stdout=log, stderr=log)
    try:
        _wait_for(port, process, folder / "broker.log")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-2000:]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"no broker after {_START_TIMEOUT_S} s: {log.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
