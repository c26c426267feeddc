"""A real Kafka broker on this machine, of one node, and Spark's connector for it.

The jars come from Maven Central.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from dedup.sources.kafka import connector, kafka_jars, kafka_packages
from dedup.spark.versions import IS_SPARK_3
from tests.support.downloads import check_files, fetched_once, pinned
from tests.support.jars import PINS, alone, maven_jars
from tests.support.processes import Daemon

#: The packages that we recommend to users.
CONNECTOR = kafka_packages()
BROKER, LOGGER = "org.apache.kafka:kafka_2.13:4.1.0", "org.slf4j:slf4j-simple:1.7.36"
SCALA = "org.scala-lang:scala-library:2.13.16"
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


def fetch_jars() -> Path:
    """Return the folder of the broker's and the connector's jars; see `maven_jars`."""
    return maven_jars([*map(alone, (*CONNECTOR, LOGGER)), BROKER])


def connector_jars() -> str:
    """The connector's jars as ``spark.jars`` takes them."""
    return kafka_jars(fetch_jars())


def _file(coordinates: str) -> str:
    group, name, version = coordinates.split(":")
    return f"{group}_{name}-{version}.jar"


class Broker:
    """A broker that can be killed and started again at the same place.

    It listens twice more: with user names and passwords (`sasl_address`), and, if the port of a
    proxy to `behind_proxy` is given, for its clients, to which it advertises that port as its own.
    """

    #: User names and passwords of `sasl_address`.
    USERS: Mapping[str, str] = {"admin": "admin-secret", "alice": "alice-secret"}

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        *,
        proxy_port: int | None = None,
    ) -> None:
        self.folder, self.log = folder, folder / "broker.log"
        self._port, self._controller, self._sasl = free_port(), free_port(), free_port()
        self.behind_proxy = None if proxy_port is None else free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.sasl_address = f"127.0.0.1:{self._sasl}"
        self._process: Daemon | None = None
        lines = self._settings(proxy_port) | dict(settings or {})
        self._properties = folder / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        self._run(
            "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties)
        )

    def start(self) -> None:
        """Start it on what is on its disk, and wait until it answers."""
        assert self._process is None, "it runs"
        # Short-lived, and beside others: a small heap, and no time spent on optimising.
        fast = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        command = [*_java(), *fast, "kafka.Kafka", str(self._properties)]
        self._process = Daemon.start(command, self.log, os.environ)
        self._process.wait_for("Kafka Server started")

    def kill(self) -> None:
        """Kill it (SIGKILL); what it has not written is lost."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Kill it, and start it on what is left."""
        self.kill()
        self.start()

    def __enter__(self) -> Broker:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it."""
        self.kill()

    def _settings(self, proxy_port: int | None) -> dict[str, object]:
        """Return what makes a node alone a quick cluster."""
        ports = {"PLAINTEXT": self._port, "SASL": self._sasl, "CONTROLLER": self._controller}
        advertised = {"PLAINTEXT": self._port, "SASL": self._sasl}
        if self.behind_proxy is not None and proxy_port is not None:
            ports["PROXIED"], advertised["PROXIED"] = self.behind_proxy, proxy_port
        users = " ".join(f'user_{name}="{secret}"' for name, secret in self.USERS.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
            "listeners": _listeners(ports),
            "advertised.listeners": _listeners(advertised),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f"{module} required {users};",
            # Users without a password may do anything; the others, anything that no ACL forbids.
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
            "log.dirs": self.folder / "logs",
            "num.partitions": 1,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 2,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
            "group.initial.rebalance.delay.ms": 0,
            # A killed broker may come back only once its old session is over.
            "broker.session.timeout.ms": 1500,
            "broker.heartbeat.interval.ms": 200,
            "auto.create.topics.enable": "false",
            # Tests write records of any time, which retention would delete in the meantime.
            "log.retention.ms": -1,
        }

    def _run(self, *command: str) -> None:
        done = subprocess.run([*_java(), *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr[-2000:]


@contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """Start a broker; gives its address."""
    with Broker(folder) as broker:
        yield broker.address


def _java() -> list[str]:
    jars = [p for p in fetch_jars().glob("*.jar") if p.name not in map(_file, CONNECTOR)]
    jars += scala_library()
    return [shutil.which("java") or "java", "-Xmx512m", "-cp", ":".join(map(str, jars))]


def scala_library() -> list[Path]:
    """The jar that Ivy leaves out, because Spark has it already. Spark 3.5 has another Scala."""
    if IS_SPARK_3:
        return list(fetched_once(f"scala-{SCALA.rpartition(':')[2]}", _fetch_scala).glob("*.jar"))
    return list((Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar"))


def _fetch_scala(place: Path) -> None:
    place.mkdir()
    connector._fetch([SCALA], place, None)
    check_files(place.glob("*.jar"), pinned(PINS), str(PINS))


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


def free_port() -> int:
    """Return a port of this machine that no one listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
