"""Options of the sink, as ``writeStream.option`` takes them, checked before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from dedup.errors import ConfigError
from dedup.sinks.options import batch_number, check_name, flag, folder, known_options
from dedup.sources.kafka.client_options import PREFIX, ClientSettings, client_settings

if TYPE_CHECKING:
    import numpy as np

EXACTLY_ONCE, ATOMIC, AT_LEAST_ONCE, NONE = "exactly-once", "atomic", "at-least-once", "none"
MODES = (EXACTLY_ONCE, ATOMIC, AT_LEAST_ONCE, NONE)
#: Where records go: by the hash of their key, or all of a task to one partition.
BY_KEY, BY_TASK = "key", "task"

#: Chooses a partition for each record: keys (binary, may be null), values, number of partitions.
Partitioner: TypeAlias = (
    "Callable[[pa.Array, pa.Array, int], np.ndarray[tuple[int], np.dtype[np.int32]]]"
)

_OWN = (
    "accept.difference", "accept.lost.markers", "checkpointlocation", "markers", "mode", "name",
    "partitioner", "staging", "topic", "transactional.id.prefix",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a sink was told.

    Parameters
    ----------
    clients : ClientSettings
        From the options ``kafka.*``.
    mode : str
        One of `MODES`.
    topic : str or None
        For all records; None where a column says it.
    markers : str
        The compacted topic of the markers.
    name : str
        Of the sink within its query; part of transactional IDs and markers.
    id_prefix : str
        How transactional IDs begin, for access control lists.
    staging : str or None
        Folder of staged slices; None in modes without any.
    partitioner : str
        ``key``, ``task``, or ``module:function``.
    accept_difference : int or None
        A micro-batch that goes on although its published slices hold other rows.
    accept_lost_markers : bool
    """

    clients: ClientSettings
    mode: str = EXACTLY_ONCE
    topic: str | None = None
    markers: str = "dedup-markers"
    name: str = "kafka"
    id_prefix: str = "dedup"
    staging: str | None = field(default=None, repr=False)
    partitioner: str | Partitioner = BY_KEY
    accept_difference: int | None = None
    accept_lost_markers: bool = False

    @property
    def ledger(self) -> str | None:
        """Folder of the sink's ledger, which lies beside what is staged."""
        return self.staging

    @property
    def transactional(self) -> bool:
        """Whether micro-batches are published in transactions."""
        return self.mode in (EXACTLY_ONCE, ATOMIC)

    def transactional_id(self, query_id: str, slot: int) -> str:
        """Return the ID of a slot: the same in every micro-batch and start, so that it fences."""
        return f"{self.id_prefix}-{query_id}-{self.name}-{slot}"


def sink_options(given: Mapping[str, str], partitioner: Partitioner | None = None) -> SinkOptions:
    """Return the options that a user gave.

    Parameters
    ----------
    given : mapping of str to str
        In any case, as Spark's options are.
    partitioner : callable, optional
        In place of the option of this name.

    Raises
    ------
    ConfigError
        If one is unknown, missing or cannot be.
    """
    options = known_options(given, _OWN, format_name="dedup_kafka", prefix=PREFIX)
    mode = options.get("mode", EXACTLY_ONCE).lower().replace("_", "-")
    if mode not in MODES:
        raise ConfigError(f"Option mode={mode!r} must be one of {', '.join(MODES)}.")
    topic = options.get("topic") or None
    name = options.get("name", "kafka")
    id_prefix = options.get("transactional.id.prefix", "dedup")
    for option, text in (("name", name), ("transactional.id.prefix", id_prefix)):
        check_name(option, text, "transactional IDs")
    markers = options.get("markers") or f"{topic or 'dedup'}-markers"
    if markers == topic:
        raise ConfigError(f"Option markers={markers!r} must name another topic than topic.")
    return SinkOptions(
        clients=client_settings(options),
        mode=mode,
        topic=topic,
        markers=markers,
        name=name,
        id_prefix=id_prefix,
        staging=folder(options, name) if mode in (EXACTLY_ONCE, ATOMIC) else None,
        partitioner=partitioner or _partitioner(options.get("partitioner", BY_KEY)),
        accept_difference=batch_number("accept.difference", options),
        accept_lost_markers=flag("accept.lost.markers", options),
    )


def _partitioner(text: str) -> str:
    if text in (BY_KEY, BY_TASK) or re.fullmatch(r"[\w.]+:\w+", text):
        return text
    raise ConfigError(
        f"Option partitioner={text!r} must be key (Java's hash of the key), task (all records of a "
        "task go to one partition), or module:function."
    )


def partitioner_key(partitioner: str | Partitioner) -> object:
    """Return what is equal for the same partitioner: a function is another one in each task."""
    if isinstance(partitioner, str):
        return partitioner
    from pyspark import cloudpickle

    return bytes(cloudpickle.dumps(partitioner))  # type: ignore[no-untyped-call]


def load_partitioner(path: str) -> Partitioner:
    """Return the function that ``module:function`` names.

    Raises
    ------
    ConfigError
        If there is none.
    """
    from importlib import import_module

    module, _, name = path.partition(":")
    try:
        found: Partitioner = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"Option partitioner={path!r} cannot be loaded: {error}. The module must be installed "
            "on every executor."
        ) from None
    return found
