"""Check the rows of a stream, turn them into Kafka records, and send the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dedup.errors import ConfigError, DataError
from dedup.sinks.columns import refuse_twins
from dedup.sinks.kafka.client_errors import describe_record, permanent_error
from dedup.sinks.kafka.options import BY_KEY, KafkaOptions, load_partitioner
from dedup.sinks.utf8 import check_utf8, only_utf8
from dedup.sources.kafka.clients import confluent

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TEXT = ("string", "binary")
#: Columns that become part of a record, each with its Arrow type and the Spark types that it may
#: have. The sink ignores other columns. Spark's own Kafka sink has the same columns, except
#: ``timestamp``.
_COLUMNS: dict[str, tuple[pa.DataType, tuple[str, ...]]] = {
    "key": (pa.binary(), _TEXT),
    "value": (pa.binary(), _TEXT),
    "headers": (_HEADERS, ("array<struct<key:string,value:binary>>",)),
    "topic": (pa.string(), ("string",)),
    "partition": (pa.int32(), ("int", "smallint", "tinyint")),
    "timestamp": (pa.int64(), ("timestamp", "timestamp_ntz")),
}
_TOPIC = r"^[a-zA-Z0-9._-]{1,249}$"
#: librdkafka's default of ``message.max.bytes``.
_MAX_BYTES = 1_000_000
#: This partition number lets librdkafka choose the partition: by the hash of the key, or at random
#: if a record has no key.
_ANY_PARTITION = -1
_METADATA_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class RecordShape:
    """The stream's columns that become records, and the largest record that the producer sends."""

    names: tuple[str, ...]
    max_bytes: int

    def records(self, rows: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
        """Return rows that have only the columns of records, in Kafka's types.

        Raises DataError if Kafka cannot store a record. Errors number the rows of a slice, and
        `first_row` is the number of the first row in `rows`.
        """
        lower = {name.lower(): index for index, name in enumerate(rows.schema.names)}
        arrays = [_normal(name, rows.column(lower[name])) for name in self.names]
        schema = pa.schema([(name, _COLUMNS[name][0]) for name in self.names])
        records = pa.RecordBatch.from_arrays(arrays, schema=schema)
        if not {"topic", "headers"}.isdisjoint(self.names):
            with only_utf8("Kafka, as a topic or as the key of a header,"):
                check_utf8(records)
        _check(records, first_row, self.max_bytes)
        return records


def record_shape(columns: Sequence[tuple[str, str]], options: KafkaOptions) -> RecordShape:
    """Return the shape of the records. `columns` has the name and Spark type of each column."""
    types = {name.lower(): kind for name, kind in columns}
    names = [name for name in _COLUMNS if name in types]
    if "topic" in names and options.topic is not None:
        names.remove("topic")
    if "value" not in names:
        raise ConfigError(
            "The sink needs a column `value` (string or binary), and the columns are "
            f"{', '.join(types)}. Rename one, or pack several, for example with to_json."
        )
    if options.topic is None and "topic" not in names:
        raise ConfigError("The sink knows no topic: give the option topic, or a column `topic`.")
    refuse_twins(name for name, _ in columns if name.lower() in names)
    for name in names:
        if types[name] not in _COLUMNS[name][1]:
            raise ConfigError(
                f"Column `{name}` is {types[name]}, and must be {' or '.join(_COLUMNS[name][1])}: "
                "cast it, or rename it if it is not part of the record."
            )
    return RecordShape(tuple(names), options.clients.whole("message.max.bytes", _MAX_BYTES))


def _normal(name: str, column: pa.Array) -> pa.Array:
    if name == "timestamp":
        # Kafka stores milliseconds. `_check` rejects times before 1970, which this would round up.
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    return column.cast(_COLUMNS[name][0])


def _check(records: pa.RecordBatch, first_row: int, max_bytes: int) -> None:
    columns = dict(zip(records.schema.names, records.columns, strict=True))
    sizes = sum(pc.binary_length(columns[n]).fill_null(0).to_numpy(zero_copy_only=False)
                for n in ("key", "value") if n in columns)  # fmt: skip
    largest = sizes.max(initial=0)
    wrong: list[tuple[pa.Array, str]] = [
        (
            pa.array((sizes == largest) & (sizes > max_bytes)),
            f"of {largest:,} bytes is larger than the producer takes ({max_bytes:,}): raise "
            "kafka.message.max.bytes, and max.message.bytes of the topic, or make it smaller",
        )
    ]
    if (topic := columns.get("topic")) is not None:
        wrong.append((pc.is_null(topic), "has a null topic, and no option topic is given"))
        is_name = pc.match_substring_regex(topic, _TOPIC)
        wrong.append((pc.invert(is_name), "has an invalid topic name (up to 249 letters, digits, "
                      "dots, underscores and hyphens)"))  # fmt: skip
    if "partition" in columns:
        wrong.append((pc.less(columns["partition"], 0), "has a negative partition"))
    if "timestamp" in columns:
        late = pc.less_equal(columns["timestamp"], 0)
        wrong.append((late, "has a timestamp that is not after 1970-01-01"))
    if "headers" in columns:
        keys = columns["headers"].flatten().flatten()[0]  # null for a null header, too
        bad = pc.or_(pc.is_null(keys), pc.fill_null(pc.match_substring(keys, "\0"), False))
        rows = pc.list_parent_indices(columns["headers"]).filter(bad)
        mask = pc.is_in(pa.array(np.arange(records.num_rows), rows.type), rows)
        wrong.append((mask, "has a null header, or a header whose key is null or contains a NUL "
                      "character: give each header a key, or drop it "
                      "(filter(headers, h -> h.key is not null))"))  # fmt: skip
    for mask, why in wrong:
        if pc.any(mask).as_py():
            record = _describe(
                records, pc.index(pc.fill_null(mask, False), True).as_py(), first_row
            )
            raise DataError(f"{record} {why}. Nothing of its slice was published.")


def _describe(records: pa.RecordBatch, row: int, first_row: int) -> str:
    parts = [f"row {first_row + row}"]
    for name in ("topic", "partition", "key"):
        names = records.schema.names
        if name in names and (value := records.column(name)[row].as_py()) is not None:
            parts.append(f"{name} {value[:64] if isinstance(value, (bytes, str)) else value!r}")
    return f"A record ({', '.join(parts)})"


class DeliveryFailure:
    """The failures that a producer has reported.

    This object is separate from the sender so that sender and producer do not refer to each other.
    If they did, the threads and connections of an unused producer would stay until Python's garbage
    collector runs.
    """

    #: Error and message of the first record of a transaction that the brokers rejected.
    first: tuple[Any, Any] | None = None
    #: The error for which the brokers reject the client, such as a wrong password. The errors of
    #: the records only say that the records timed out.
    client: Any = None

    def on_error(self, error: Any) -> None:
        if permanent_error(error, "") is not None:
            self.client = error

    def on_delivery(self, error: Any, message: Any) -> None:
        if error is not None and self.first is None:
            self.first = error, message


class Sender:
    """A producer with the properties in `config`, and what it sends."""

    def __init__(
        self,
        options: KafkaOptions,
        config: dict[str, Any],
        failure: DeliveryFailure | None = None,
        **more: Any,
    ) -> None:
        self._options = options
        chooser = options.partitioner
        is_path = isinstance(chooser, str) and ":" in chooser
        self._partitioner = load_partitioner(str(chooser)) if is_path else chooser
        self._partitions: dict[str, int] = {}
        self.failure = failure or DeliveryFailure()
        #: Topic, value, key, partition and more of the last record.
        self._last: tuple[Any, ...] = ("none yet", None, None, None)
        own = {
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
            # How long a topic may be unknown before its records fail. This must be shorter than the
            # time limit of a transaction, because the error of that limit would not name the topic.
            "topic.metadata.propagation.max.ms": 5_000,
        }
        reports = {
            "delivery.report.only.error": True,
            "on_delivery": self.failure.on_delivery,
            "error_cb": self.failure.on_error,
        }
        properties = options.clients.properties
        defaults = {name: value for name, value in own.items() if name not in properties}
        self.producer: Any = confluent().Producer(config | defaults | reports, **more)

    @property
    def last_record(self) -> str:
        topic, value, key, partition, *_ = self._last
        return describe_record(topic, value, key, partition)

    def begin(self) -> None:
        self.failure.first = self.failure.client = None

    def send(self, records: pa.RecordBatch, task: int) -> None:
        produce, poll = self.producer.produce, self.producer.poll
        for arguments in self._arguments(records, task):
            self._last = arguments
            while True:
                try:
                    produce(*arguments)
                    break
                except BufferError:  # the queue is full: wait for the brokers
                    poll(0.05)
        poll(0)

    def partitions(self, topic: str) -> int:
        if not self._partitions.get(topic):
            metadata = self.producer.list_topics(topic, _METADATA_TIMEOUT_S).topics[topic]
            self._partitions[topic] = len(metadata.partitions)
        if not self._partitions[topic]:
            raise ConfigError(
                f"Topic {topic!r} does not exist at {self._options.clients.servers}. Create it, "
                "or correct the option or column that names it."
            )
        return self._partitions[topic]

    def _arguments(self, records: pa.RecordBatch, task: int) -> Any:
        """Return the arguments of `produce` for each record, but only the necessary ones."""
        lists = {name: records.column(name).to_pylist() for name in records.schema.names}
        topics, none = lists.get("topic", repeat(self._options.topic)), repeat(None)
        values, keys = lists["value"], lists.get("key", none)
        places = self._chosen(records, task)
        if "partition" in lists:
            pairs = zip(lists["partition"], places, strict=False)
            places = [explicit if explicit is not None else chosen for explicit, chosen in pairs]
        if {"headers", "timestamp"}.isdisjoint(lists):
            return zip(topics, values, keys, places, strict=False)
        times: Any = repeat(0)
        if "timestamp" in lists:
            times = [time_ms or 0 for time_ms in lists["timestamp"]]
        headers = lists.get("headers", none)
        if "headers" in lists:
            headers = [each and [(h["key"], h["value"]) for h in each] for each in headers]
        return zip(topics, values, keys, places, none, none, times, headers, strict=False)

    def _chosen(self, records: pa.RecordBatch, task: int) -> Any:
        chooser = self._partitioner
        if chooser == BY_KEY:
            return repeat(_ANY_PARTITION)
        names = records.schema.names
        values, keys = records.column("value"), pa.nulls(records.num_rows, pa.binary())
        if "key" in names:
            keys = records.column("key")
        topics = np.full(records.num_rows, self._options.topic, object)
        if "topic" in names:
            topics = records.column("topic").to_numpy(zero_copy_only=False)
        chosen = np.empty(records.num_rows, np.int64)
        for topic in dict.fromkeys(topics):
            rows = np.flatnonzero(topics == topic)
            count = self.partitions(topic)
            if isinstance(chooser, str):  # BY_TASK
                partitions = np.full(len(rows), task % count)
            else:
                partitions = np.asarray(chooser(keys.take(rows), values.take(rows), count))
            fits = partitions.shape == rows.shape and partitions.dtype.kind in "iu"
            if not fits or (
                len(partitions) and not 0 <= partitions.min() <= partitions.max() < count
            ):
                raise ConfigError(
                    "The partitioner must return one whole number for each record, from 0 to "
                    f"{count - 1} for topic {topic!r}. For {len(rows)} records it returned "
                    f"{partitions.dtype} of shape {partitions.shape}: {str(partitions)[:80]}."
                )
            chosen[rows] = partitions
        return chosen.tolist()
