"""One broker for all the tests of a process."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dedup.sources.kafka.connector import has_connector
from tests.kafka.broker import Broker, connector_jars, fetch_jars, free_port
from tests.kafka.proxy import Proxy
from tests.kafka.sink_query import PRELOAD, SinkQuery
from tests.support.kafka_needs import VARIABLE, UnimportableFile, missing_library, need_broker
from tests.support.needs import do_without
from tests.support.quick_spark import session_of_the_process


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> object:
    if missing_library() is None:
        return None  # pytest imports the file
    return UnimportableFile.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def proxy_and_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Broker]]:
    """The broker, and a proxy before it that passes everything on until a fault is armed."""
    need_broker()
    try:
        fetch_jars()
    except (OSError, subprocess.TimeoutExpired) as error:
        do_without(VARIABLE, f"Kafka's jars cannot be fetched from Maven Central: {error}")
    port = free_port()
    broker = Broker(tmp_path_factory.mktemp("kafka"), proxy_port=port)
    with broker, Proxy(port, to_port=broker.behind_proxy or 0) as proxy:
        yield proxy, broker


@pytest.fixture(scope="session")
def broker_process(proxy_and_broker: tuple[Proxy, Broker]) -> Broker:
    """The broker itself; who kills it leaves it running."""
    return proxy_and_broker[1]


@pytest.fixture(scope="session")
def broker(broker_process: Broker) -> str:
    """Its address."""
    return broker_process.address


@pytest.fixture
def proxy(proxy_and_broker: tuple[Proxy, Broker]) -> Iterator[Proxy]:
    """The proxy before it, whose faults end with the test."""
    found = proxy_and_broker[0]
    yield found
    found.disarm()


@pytest.fixture(scope="session")
def shared_spark(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests, with Kafka: formats are looked up in the active one alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PRELOAD), prepend=os.pathsep)
        session = session_of_the_process(tmp_path_factory.mktemp("spark"), connector_jars())
    if not has_connector(session):  # other tests of this process have started it
        for jar in connector_jars().split(","):
            session.sql(f"ADD JAR '{jar}'")
    yield session
    session.stop()


@pytest.fixture
def sink(spark: SparkSession, broker: str, tmp_path: Path) -> SinkQuery:
    """A query into its own topic."""
    from tests.kafka.records import make_topic  # needs the client library, as this file does not

    topic = make_topic(broker, f"out-{uuid.uuid4().hex[:8]}", 3)
    return SinkQuery(spark, broker, topic, tmp_path)
