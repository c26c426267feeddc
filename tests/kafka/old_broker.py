"""The oldest broker that this package supports, which still needs a ZooKeeper beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kafka.broker import LOGGER, free_port, scala_library
from tests.support.jars import alone, maven_jars
from tests.support.processes import Daemon

#: Topics have IDs since 2.8, by which `kafka_records` notices a topic that was created again.
OLDEST = "org.apache.kafka:kafka_2.13:2.8.2"


@contextmanager
def running_old_broker(folder: Path) -> Iterator[str]:
    """Start the broker and its ZooKeeper; gives the broker's address."""
    jars = [*maven_jars([alone(LOGGER), OLDEST]).glob("*.jar"), *scala_library()]
    fast = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")
    java = [shutil.which("java") or "java", *fast, "-cp", ":".join(map(str, jars))]
    port, keeper_port = free_port(), free_port()
    settings = {
        "broker.id": 1,
        "zookeeper.connect": f"127.0.0.1:{keeper_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": folder / "logs",
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 2,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
    }
    properties = folder / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    keeper = Daemon.start(
        [*java, "-Dzookeeper.admin.enableServer=false", main, str(keeper_port), str(folder / "zk")],
        folder / "zk.log",
        os.environ,
    )
    try:
        keeper.wait_for("binding to port")
        broker = Daemon.start([*java, "kafka.Kafka", str(properties)], folder / "log", os.environ)
        try:
            broker.wait_for(r"KafkaServer id=1\] started")
            yield f"127.0.0.1:{port}"
        finally:
            broker.kill()
    finally:
        keeper.kill()
