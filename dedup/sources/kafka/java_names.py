"""Names of Kafka's Java client that librdkafka has otherwise, or not at all.

Spark's own ``kafka`` sink and source take the Java client's names. Those that librdkafka shares
(``linger.ms``, ``acks``, ``client.id``, ...) are in no table here: they go through as they are.
"""

from __future__ import annotations

#: Java's name, or librdkafka's second one, to the name under which it is given to librdkafka.
RENAMED = {
    "buffer.memory": "queue.buffering.max.kbytes",
    "compression.codec": "compression.type",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "max.request.size": "message.max.bytes",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.ms": "linger.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.required.acks": "acks",
    # Java's is how long the client waits for a reply, which librdkafka calls so.
    "request.timeout.ms": "socket.timeout.ms",
    "sasl.mechanisms": "sasl.mechanism",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}

_BYTES = "keys and values are bytes or text here: convert the columns before the sink; leave it out"
_PARTITIONER = (
    "by the key's murmur2 hash as the Java client does; for others give the sink's own option "
    'partitioner, or a column "partition"'
)

#: Java's name, or one that would break the guarantee, to the way out.
REFUSED = {
    "auto.offset.reset": 'give it as Spark does, with "startingOffsets"',
    "enable.auto.commit": "offsets are kept in the checkpoint, not in Kafka; leave it out",
    "key.deserializer": _BYTES,
    "key.serializer": _BYTES,
    "partitioner": f"the sink chooses partitions itself, {_PARTITIONER}",
    "partitioner.class": f"a Java class cannot run here. The sink chooses, {_PARTITIONER}",
    "sasl.client.callback.handler.class": (
        "a Java class cannot run here; give kafka.sasl.username and kafka.sasl.password"
    ),
    "transactional.id": (
        "the sink makes one for each of its tasks, which is what keeps out a task that was "
        "believed dead; leave it out"
    ),
    "value.deserializer": _BYTES,
    "value.serializer": _BYTES,
}

#: The same for all names that begin so.
REFUSED_PREFIXES = {
    "partitioner.": f"the sink chooses partitions itself, {_PARTITIONER}",
    "sasl.login.": (
        "a Java login module cannot run here; for OAuth give kafka.sasl.oauthbearer.method=oidc "
        "and what librdkafka needs besides (kafka.sasl.oauthbearer.client.id, .client.secret, "
        ".token.endpoint.url)"
    ),
}
