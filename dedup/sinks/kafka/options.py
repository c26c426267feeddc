"""The options of the Kafka sink, which users pass to ``writeStream.option``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup.errors import ConfigError
from dedup.sinks.options import ACCEPT, NAME, STAGING, SinkOptions, folder, named
from dedup.sources.kafka.client_options import PREFIX, ClientSettings, client_settings
from dedup.values.option import Option, choice, read_options, text

FORMAT = "dedup_kafka"
EXACTLY_ONCE, ATOMIC, AT_LEAST_ONCE, NONE = "exactly-once", "atomic", "at-least-once", "none"
#: Built-in partitioners. `BY_KEY` chooses the partition by the hash of the record's key. `BY_TASK`
#: sends all records of a task to one partition.
BY_KEY, BY_TASK = "key", "task"

#: A user's function that returns a partition for each record. It gets the keys (binary, may be
#: null), the values, and the number of partitions.
Partitioner: TypeAlias = Callable[[pa.Array, pa.Array, int], npt.NDArray[np.int32]]

_MODE = replace(
    choice(EXACTLY_ONCE, ATOMIC, AT_LEAST_ONCE, NONE),
    parse=lambda raw: raw.strip().lower().replace("_", "-"),
)
_PARTITIONER = text(
    r"key|task|[\w.]+:\w+",
    "be key (Java's hash of the key), task (all records of a task go to one partition), or "
    "module:function.",
)
OPTIONS = (
    Option("topic", text(), help="topic for all records; default: the column `topic`"),
    Option("mode", _MODE, EXACTLY_ONCE, help="see below"),
    Option("partitioner", _PARTITIONER, BY_KEY, help="what chooses a record's partition"),
    Option("markers", text(), help="topic of the markers; default: `<topic>-markers`"),
    STAGING,
    Option("transactional.id.prefix", NAME, "dedup", help="start of the transactional IDs"),
    named("kafka"),
    *ACCEPT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions(SinkOptions):
    """The values of the options in `OPTIONS`, and the client settings from options ``kafka.*``.

    `topic` is None if a column names the topic of each record. The sink also stages slices in the
    folder `ledger`, which is None in modes without transactions. `partitioner` is a text, or the
    user's function.
    """

    clients: ClientSettings
    topic: str | None
    mode: str
    partitioner: str | Partitioner
    markers: str
    transactional_id_prefix: str

    @property
    def transactional(self) -> bool:
        return self.mode in (EXACTLY_ONCE, ATOMIC)

    def transactional_id(self, query_id: str, slot: int) -> str:
        """Return a slot's transactional ID.

        The ID is the same in every micro-batch and start, so that a new owner fences earlier
        owners.
        """
        return f"{self.transactional_id_prefix}-{query_id}-{self.name}-{slot}"


def kafka_options(
    options: Mapping[str, str], partitioner: Partitioner | None = None
) -> KafkaOptions:
    """Return the options that a user gave. If `partitioner` is given, it replaces the option."""
    values = read_options(options, OPTIONS, owner=f"format {FORMAT}", prefix=PREFIX)
    topic = values["topic"]
    values["markers"] = values["markers"] or f"{topic or 'dedup'}-markers"
    if values["markers"] == topic:
        raise ConfigError(f"Option markers={topic!r} must name another topic than topic.")
    del values[STAGING.name]
    is_transactional = values["mode"] in (EXACTLY_ONCE, ATOMIC)
    values["ledger"] = folder(options, values["name"]) if is_transactional else None
    if partitioner is not None:
        values["partitioner"] = partitioner
    clients = client_settings({name.lower(): text.strip() for name, text in options.items()})
    return KafkaOptions(clients=clients, **values)


def partitioner_key(partitioner: str | Partitioner) -> object:
    """Return a key that is equal for all copies of a partitioner. Each task has its own copy."""
    if isinstance(partitioner, str):
        return partitioner
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(partitioner))  # type: ignore[no-untyped-call]


def load_partitioner(path: str) -> Partitioner:
    module, _, name = path.partition(":")
    try:
        partitioner: Partitioner = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"Option partitioner={path!r} cannot be loaded: {error}. The module must be installed "
            "on every executor."
        ) from None
    return partitioner
