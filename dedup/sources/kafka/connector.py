"""Finds the jars of Spark's own Kafka connector that fit a release of Spark.

Spark publishes the connector later than PySpark, and for some releases never. For these releases we
use the newest connector of the same line, such as 4.1. For most releases Maven Central lacks a part
of the connector, the token provider, so ``--packages`` finds the connector and then fails. We use
the nearest available version of the token provider. So we list all jars ourselves.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dedup.errors import ConfigError
from dedup.spark.machine import home_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _jars(
    connector: str, tokens: str, clients: str, pool: str, scala: str = "2.13"
) -> tuple[str, ...]:
    return (
        f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{connector}",
        f"org.apache.spark:spark-token-provider-kafka-0-10_{scala}:{tokens}",
        f"org.apache.kafka:kafka-clients:{clients}",
        f"org.apache.commons:commons-pool2:{pool}",
    )


_JARS_4_2 = _jars("4.2.0", tokens="4.2.0", clients="3.9.2", pool="2.13.1")
#: Versions of the connector's parts for each line of Spark, from the connector's POM.
JARS = {
    "3.5": _jars("3.5.7", tokens="3.5.7", clients="3.4.1", pool="2.11.1", scala="2.12"),
    "4.0": _jars("4.0.0", tokens="4.0.0", clients="3.9.0", pool="2.12.0"),
    "4.1": _jars("4.1.3", tokens="4.0.0", clients="3.9.1", pool="2.12.1"),
    "4.2": _JARS_4_2,
    "4.3": _JARS_4_2,
}
#: Default folder of `kafka_jars`.
FOLDER = Path("~/.cache/rolling-dedup/kafka-connector")
_FETCH_S = 300
#: Options with which Spark returns the columns of its Kafka source without asking a broker.
_PROBE = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "topic"}


def kafka_packages(spark: SparkSession | str | None = None) -> tuple[str, ...]:
    """Return the Maven coordinates ``group:artifact:version`` of the connector's jars.

    Parameters
    ----------
    spark : SparkSession or str, optional
        A session, or Spark's version. Default: the version of the installed PySpark.

    Raises
    ------
    ConfigError
        If no connector is known for this version.

    Examples
    --------
    >>> kafka_packages("4.3.0")[0]
    'org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0'
    """
    if spark is None:
        import pyspark

        spark = pyspark.__version__
    version = spark if isinstance(spark, str) else spark.version
    line = re.match(r"\d+\.\d+", version)
    jars = JARS.get(line.group()) if line else None
    if jars is None:
        raise ConfigError(
            f"No jars of Spark's Kafka connector are known for Spark {version}, only for "
            f"{', '.join(JARS)}. Start the session with the option spark.jars, with the files of "
            "org.apache.spark:spark-sql-kafka-0-10 and its dependencies."
        )
    return jars


def kafka_jars(folder: str | Path = FOLDER, *, ivy_settings: str | None = None) -> str:
    """Return the connector's jars for the setting ``spark.jars`` of a new session.

    If the folder lacks jars, PySpark's Ivy fetches them from Maven Central.

    Parameters
    ----------
    folder : str or Path
        Folder in which the jars stay. Executors get the jars from the driver.
    ivy_settings : str, optional
        File that names other repositories, in the format of ``spark.jars.ivySettings``.

    Raises
    ------
    ConfigError
        If no connector is known for the installed PySpark, or its jars cannot be fetched.
    """
    place, names = home_path(folder), kafka_packages()
    files = [place / "{}_{}-{}.jar".format(*name.split(":")) for name in names]
    if not all(file.exists() for file in files):
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as fetched:
            _fetch(names, Path(fetched), ivy_settings)
            for file in files:
                # Rename atomically, because another process may look for the file.
                (Path(fetched) / file.name).replace(file)
    return ",".join(map(str, files))


def add_kafka_connector(spark: SparkSession) -> None:
    """Add the connector to a running session that lacks it, so that ``format("kafka")`` works.

    The session fetches the jars through Ivy, as with ``--packages``, and sends them to its
    executors. For a new session use `kafka_jars` instead. Spark does not find the connector's
    metrics in jars that are added later, and logs a warning with each micro-batch.

    Raises
    ------
    ConfigError
        If no connector is known for this Spark, or its jars cannot be fetched.
    """
    if has_connector(spark):
        return
    for name in kafka_packages(spark):
        try:
            spark.sql(f"ADD JAR 'ivy://{name}?transitive=false'")
        except Exception as error:
            raise _unfetched([name], str(error).strip().splitlines()[:2]) from None


def has_connector(spark: SparkSession) -> bool:
    try:
        _ = spark.readStream.format("kafka").options(**_PROBE).load().schema
    except Exception as error:
        # The class of the error differs between releases, but its text always names the guide.
        if "Kafka Integration Guide" in str(error):
            return False
        raise
    return True


def _fetch(names: Iterable[str], folder: Path, ivy_settings: str | None) -> None:
    import pyspark

    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"), None)
    if java is None or ivy is None:
        missing = "java is not installed" if java is None else "this PySpark has no Ivy"
        raise _unfetched(names, [missing])
    line = '<dependency org="{}" name="{}" rev="{}" conf="default-&gt;master" transitive="false"/>'
    wanted = "".join(line.format(*name.split(":")) for name in names)
    module = folder / "ivy.xml"
    module.write_text(
        '<ivy-module version="2.0"><info organisation="dedup" module="connector"/>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )
    pattern = folder / "[organisation]_[artifact]-[revision].[ext]"
    command = [java, "-jar", str(ivy), "-m2compatible"]
    # Use a separate cache: Ivy does not lock the cache in the home folder against other processes.
    command += ["-ivy", str(module), "-retrieve", str(pattern), "-cache", str(folder / "cache")]
    command += ["-settings", ivy_settings] if ivy_settings else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_FETCH_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unfetched(names, [str(error)]) from None
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        problems = [line.strip(": \t") for line in lines if "not found" in line]
        raise _unfetched(names, problems[-3:] or lines[-1:])


def _unfetched(names: Iterable[str], reason: Iterable[str]) -> ConfigError:
    return ConfigError(
        f"The jars of Spark's Kafka connector cannot be fetched: {'; '.join(reason)}. If no "
        "Maven repository can be reached, start the session with spark.jars and the files of: "
        f"{', '.join(names)}."
    )
