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

_LEAVE_OUT = "it belongs to Kafka's Java client, and means nothing to librdkafka; leave it out"
_BYTES = "keys and values are bytes or text here: convert the columns before the sink; leave it out"
_START = 'give it as Spark does, with "startingOffsets"'
_PARTITIONER = (
    "by the key's murmur2 hash as the Java client does; for others give the sink's own option "
    'partitioner, or a column "partition"'
)
_CHECKPOINT = "offsets are kept in the checkpoint, not in Kafka; leave it out"

#: Java's name to the way out.
REFUSED = {
    "auto.include.jmx.reporter": _LEAVE_OUT,
    "auto.offset.reset": _START,
    "client.telemetry.enable": "librdkafka calls it kafka.enable.metrics.push",
    "config.providers": "give the values themselves, or from the environment of the driver",
    "enable.auto.commit": _CHECKPOINT,
    "interceptor.classes": _LEAVE_OUT,
    "key.deserializer": _BYTES,
    "key.serializer": _BYTES,
    "metric.reporters": _LEAVE_OUT,
    "partitioner": f"the sink chooses partitions itself, {_PARTITIONER}",
    "partitioner.class": f"a Java class cannot run here. The sink chooses, {_PARTITIONER}",
    "sasl.client.callback.handler.class": (
        "a Java class cannot run here; give kafka.sasl.username and kafka.sasl.password"
    ),
    "security.providers": _LEAVE_OUT,
    "socket.connection.setup.timeout.max.ms": (
        "librdkafka has one limit: give kafka.socket.connection.setup.timeout.ms"
    ),
    "ssl.enabled.protocols": "librdkafka takes TLS 1.2 and newer, as OpenSSL does; leave it out",
    "ssl.keymanager.algorithm": _LEAVE_OUT,
    "ssl.protocol": "librdkafka takes the newest TLS that both sides know; leave it out",
    "ssl.provider": _LEAVE_OUT,
    "ssl.secure.random.implementation": _LEAVE_OUT,
    "ssl.trustmanager.algorithm": _LEAVE_OUT,
    "transaction.two.phase.commit.enable": "the sink commits in one step; leave it out",
    "transactional.id": (
        "the sink makes one for each of its tasks, which is what keeps out a task that was "
        "believed dead; leave it out"
    ),
    "value.deserializer": _BYTES,
    "value.serializer": _BYTES,
}

#: The same for all names that begin so.
REFUSED_PREFIXES = {
    "metrics.": _LEAVE_OUT,
    "partitioner.": f"the sink chooses partitions itself, {_PARTITIONER}",
    "sasl.login.": (
        "a Java login module cannot run here; for OAuth give kafka.sasl.oauthbearer.method=oidc "
        "and what librdkafka needs besides (kafka.sasl.oauthbearer.client.id, .client.secret, "
        ".token.endpoint.url)"
    ),
    "ssl.engine.": _LEAVE_OUT,
}

#: What people may have meant by a name that nobody knows.
COMMON = (
    "acks", "allow.auto.create.topics", "batch.num.messages", "batch.size", "bootstrap.servers",
    "broker.address.family", "client.dns.lookup", "client.id", "client.rack", "compression.level",
    "compression.type", "connections.max.idle.ms", "debug", "delivery.timeout.ms",
    "enable.idempotence", "enable.ssl.certificate.verification", "fetch.max.bytes",
    "fetch.min.bytes", "group.id", "isolation.level", "linger.ms", "max.block.ms",
    "max.in.flight.requests.per.connection", "max.partition.fetch.bytes", "message.max.bytes",
    "metadata.max.age.ms", "queue.buffering.max.kbytes", "queue.buffering.max.messages",
    "receive.message.max.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retries",
    "retry.backoff.max.ms", "retry.backoff.ms", "sasl.jaas.config", "sasl.kerberos.service.name",
    "sasl.mechanism", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.method", "sasl.oauthbearer.scope", "sasl.oauthbearer.token.endpoint.url",
    "sasl.password", "sasl.username", "security.protocol", "session.timeout.ms",
    "socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.nagle.disable",
    "socket.timeout.ms", "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location",
    "ssl.certificate.pem", "ssl.cipher.suites", "ssl.endpoint.identification.algorithm",
    "ssl.key.location", "ssl.key.password", "ssl.key.pem", "ssl.keystore.location",
    "ssl.keystore.password", "ssl.keystore.type", "ssl.truststore.location",
    "ssl.truststore.type", "statistics.interval.ms", "transaction.timeout.ms",
    *RENAMED,
)  # fmt: skip
