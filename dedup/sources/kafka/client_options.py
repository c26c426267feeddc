"""Translates options ``kafka.*`` from names of Kafka's Java client to librdkafka's properties.

Spark's own Kafka source and sink take the names of the Java client. librdkafka has the same name
for most options (``linger.ms``, ``acks``). The tables in this module hold the options whose names
differ. librdkafka itself rejects unknown names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dedup.errors import ConfigError
from dedup.errors.redaction import without_secrets

PREFIX = "kafka."
#: Default of Java's ``max.block.ms``.
BLOCK_MS = 60_000
#: A broker that does not answer for this long counts as unreachable.
REACH_MS = 15_000
#: Default of ``transaction.timeout.ms`` in both clients.
TRANSACTION_TIMEOUT_MS = 60_000
#: Minimum delay before librdkafka repeats an unanswered request, less 20 % jitter. The delay is
#: longer than librdkafka's default of 100, so that the times of two commits show a repeated one.
RETRY_BACKOFF_MS = 250

#: librdkafka's properties by Java's name or by librdkafka's alias.
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
    # librdkafka uses this name for another setting. In Java it is the longest wait for a reply.
    "request.timeout.ms": "socket.timeout.ms",
    "sasl.mechanisms": "sasl.mechanism",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
#: librdkafka's properties for Java's PEM files. A keystore's file holds the private key and the
#: certificate chain.
_PEM_FILES = {
    "ssl.truststore.": ("ssl.ca.location",),
    "ssl.keystore.": ("ssl.key.location", "ssl.certificate.location"),
}
#: Properties that librdkafka accepts although they would break the guarantee, with our advice.
REFUSED = {
    "enable.auto.commit": "the checkpoint keeps the offsets, not Kafka; leave it out",
    "partitioner": (
        "the sink chooses the partition, by the key's murmur2 hash as the Java client does. To "
        'choose otherwise, give the sink\'s own option partitioner, or a column "partition"'
    ),
    "transactional.id": (
        "the sink creates an ID for each of its tasks, which fences tasks that were believed "
        "dead; leave it out"
    ),
}
_OPTION = r"""(username|password)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)"""
_LOGIN = re.compile(
    rf"\s*(?:[\w.$]+\.)?(?:Plain|Scram)LoginModule\s+\w+\s+{_OPTION}\s*{_OPTION}\s*;?\s*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings from which every client of one cluster is created."""

    #: Properties for librdkafka, with the servers. ``repr`` omits them because of their secrets.
    properties: Mapping[str, str] = field(repr=False)
    #: Longest wait for the cluster's answer in one call, in milliseconds (``max.block.ms``).
    block_ms: int = BLOCK_MS

    @property
    def servers(self) -> str:
        return self.properties["bootstrap.servers"]

    @property
    def timeout_s(self) -> float:
        """Longest wait, in seconds, for an answer to a request about the cluster itself."""
        return min(self.block_ms, REACH_MS) / 1000

    @property
    def transaction_timeout_ms(self) -> int:
        """Time after which the broker aborts a transaction that was not committed."""
        return self.whole("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)

    @property
    def retry_backoff_ms(self) -> int:
        """Wait of a transactional producer before it repeats a request."""
        return self.whole(
            "retry.backoff.ms", min(RETRY_BACKOFF_MS, self.whole("retry.backoff.max.ms", 1000))
        )

    def whole(self, name: str, default: int) -> int:
        """Return an integer property, or raise ConfigError if it is not an integer."""
        value = self.properties.get(name)
        return default if value is None else _whole(PREFIX + name, value)

    def without_secrets(self, text: str) -> str:
        return without_secrets(text, self.properties)


def client_settings(options: Mapping[str, str]) -> ClientSettings:
    """Return the client settings that the options ``kafka.*`` describe.

    Names may be in upper or lower case, as in Spark. Other options than ``kafka.*`` are ignored.
    `dedup.sources.kafka.clients.check_known` lets librdkafka check names and values. Errors show no
    value that may be secret.

    Examples
    --------
    >>> given = {"kafka.bootstrap.servers": "a:9092", "kafka.max.request.size": "2000000"}
    >>> dict(client_settings(given).properties)
    {'bootstrap.servers': 'a:9092', 'message.max.bytes': '2000000'}
    """
    kafka = {
        name.lower().removeprefix(PREFIX): value.strip()
        for name, value in options.items()
        if name.lower().startswith(PREFIX)
    }
    for name in kafka.keys() & REFUSED.keys():
        raise ConfigError(f"Option {PREFIX}{name} cannot be used: {REFUSED[name]}.")
    block_ms = _whole("kafka.max.block.ms", kafka.pop("max.block.ms", str(BLOCK_MS)))
    properties = dict(_translated(kafka))
    if not properties.get("bootstrap.servers"):
        raise ConfigError(
            "Option kafka.bootstrap.servers is missing. Give the addresses of some of the "
            'cluster\'s servers, such as "host1:9092,host2:9092".'
        )
    return ClientSettings(properties=properties, block_ms=block_ms)


def check_transactional(settings: ClientSettings) -> None:
    """Refuse settings under which a transaction could lose records or never be committed."""
    acks = settings.properties.get("acks", "all").lower()
    if acks not in ("all", "-1"):
        raise ConfigError(
            f"Option kafka.acks={acks} lets the broker lose records that it has "
            "acknowledged, so exactly-once is impossible. Leave it out, or give all."
        )
    if settings.properties.get("enable.idempotence", "true").lower() not in ("true", "t", "1"):
        raise ConfigError(
            "Option kafka.enable.idempotence=false lets a producer's retries repeat records, and "
            'transactions need it. Leave it out, or choose mode "at-least-once".'
        )
    timeout_ms = settings.transaction_timeout_ms
    delivery_ms = settings.whole("delivery.timeout.ms", timeout_ms)
    if not 0 < delivery_ms <= timeout_ms:
        raise ConfigError(
            f"Option kafka.delivery.timeout.ms={delivery_ms} must be at most "
            f"kafka.transaction.timeout.ms={timeout_ms}. Records that wait longer than that could "
            "arrive after their transaction was aborted. Leave the option out to make both equal."
        )


def _translated(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    renamed: dict[str, tuple[str, ...]] = {option: (name,) for option, name in RENAMED.items()}
    for prefix, names in _PEM_FILES.items():
        kind = options.get(f"{prefix}type", "").upper()
        contents = {f"{prefix}{name}" for name in ("location", "certificates", "key")}
        # Keep a type without a store, so that librdkafka rejects it. If we dropped the type, the
        # client would lose its TLS trust.
        if kind == "PEM" and contents & options.keys():
            renamed |= {f"{prefix}type": (), f"{prefix}location": names}
        elif (prefix, kind) == ("ssl.keystore.", "PKCS12"):  # the only type that librdkafka reads
            renamed[f"{prefix}type"] = ()
    for option, value in options.items():
        login = _LOGIN.fullmatch(value) if option == "sasl.jaas.config" else None
        if login is not None and {login[1], login[3]} == {"username", "password"}:
            for name, quoted in ((login[1], login[2]), (login[3], login[4])):
                yield f"sasl.{name}", _unquoted(quoted)
            continue
        for name in renamed.get(option, (option,)):
            yield name, _in_librdkafkas_units(name, option, value)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text[0] in "\"'" else text


def _in_librdkafkas_units(name: str, option: str, value: str) -> str:
    if option == "buffer.memory":
        return str(-(-_whole("kafka.buffer.memory", value) // 1024))
    if name in ("socket.receive.buffer.bytes", "socket.send.buffer.bytes") and value == "-1":
        return "0"  # the system's default
    if name == "ssl.endpoint.identification.algorithm" and not value:
        return "none"
    return value


def _whole(option: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"Option {option} must be an integer, not {value!r}.") from None
