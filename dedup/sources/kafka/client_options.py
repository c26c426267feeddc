"""Options ``kafka.*`` as Spark's own Kafka sink takes them, turned into librdkafka's properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dedup.errors import ConfigError
from dedup.errors.redaction import without_secrets
from dedup.sources.kafka.java_names import REFUSED, REFUSED_PREFIXES, RENAMED
from dedup.sources.kafka.security_options import is_java_security, security_properties

PREFIX = "kafka."
#: Java's ``max.block.ms``, where nobody gave it.
BLOCK_MS = 60_000
#: Java's and librdkafka's ``transaction.timeout.ms``, where nobody gave it.
TRANSACTION_TIMEOUT_MS = 60_000
#: librdkafka repeats a request that has no answer no sooner (its jitter takes a fifth off). Longer
#: than its default of 100, so that a commit that came through at once is told from one sent twice.
RETRY_BACKOFF_MS = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What every client of one cluster is made from.

    Parameters
    ----------
    properties : mapping of str to str
        For librdkafka, the servers among them. They may hold secrets, so they are in no ``repr``.
    options : mapping of str to str
        Name of each property's option as the user knows it, for error texts.
    block_ms : int
        Longest wait for the cluster's answer in one call, in milliseconds (Java's
        ``max.block.ms``).
    """

    properties: Mapping[str, str] = field(repr=False)
    options: Mapping[str, str] = field(repr=False)
    block_ms: int = BLOCK_MS

    @property
    def servers(self) -> str:
        """Addresses of the bootstrap servers, separated by commas."""
        return self.properties["bootstrap.servers"]

    @property
    def transaction_timeout_ms(self) -> int:
        """After how long the broker aborts a transaction that nobody commits."""
        return self.whole("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)

    @property
    def retry_backoff_ms(self) -> int:
        """How long a transactional producer waits before it repeats a request."""
        return self.whole(
            "retry.backoff.ms", min(RETRY_BACKOFF_MS, self.whole("retry.backoff.max.ms", 1000))
        )

    def whole(self, name: str, default: int) -> int:
        """Return a property that is a whole number.

        Raises
        ------
        ConfigError
            If it is none.
        """
        value = self.properties.get(name)
        return default if value is None else _whole(self.option(name), value)

    def option(self, name: str) -> str:
        """Return the option that a property was given by."""
        return self.options.get(name, PREFIX + name)

    def without_secrets(self, text: str) -> str:
        """Return the text with every secret of the properties blotted out."""
        return without_secrets(text, self.properties)


def client_settings(options: Mapping[str, str]) -> ClientSettings:
    """Return the settings that the options ``kafka.*`` stand for.

    librdkafka's own names go through as they are, those of the Java client are translated. Values
    that only librdkafka can judge, and names that it does not know, are refused by
    `dedup.sources.kafka.clients.check_known`.

    Parameters
    ----------
    options : mapping of str to str
        Options of a sink or a source, in upper or lower case, as Spark's are; those that do not
        begin with ``kafka.`` are left alone.

    Raises
    ------
    ConfigError
        If there are no servers, a name belongs to the Java client alone, or two options say the
        same; with the option's name and the way out, never with a value that may be secret.

    Examples
    --------
    >>> given = {"kafka.bootstrap.servers": "a:9092", "kafka.max.request.size": "2000000"}
    >>> dict(client_settings(given).properties)
    {'bootstrap.servers': 'a:9092', 'message.max.bytes': '2000000'}
    """
    given = {
        name.lower().removeprefix(PREFIX): value.strip()
        for name, value in options.items()
        if name.lower().startswith(PREFIX)
    }
    for name in given:
        _refuse_java(name)
    block_ms = _whole("kafka.max.block.ms", given.pop("max.block.ms", str(BLOCK_MS)))
    properties: dict[str, str] = {}
    sources: dict[str, str] = {}
    translated = [(RENAMED.get(n, n), n, v) for n, v in given.items() if not is_java_security(n)]
    translated += [(to, source, v) for to, (source, v) in _security(given).items()]
    for name, source, value in translated:
        if name in properties:
            raise ConfigError(
                f"Options kafka.{sources[name]} and kafka.{source} set the same property of "
                "librdkafka; give one of them."
            )
        properties[name], sources[name] = _value(name, source, value), source
    if not properties.get("bootstrap.servers"):
        raise ConfigError(
            "Option kafka.bootstrap.servers is missing: give the addresses of some of the "
            'cluster\'s servers, such as "host1:9092,host2:9092".'
        )
    named = {name: PREFIX + source for name, source in sources.items()}
    return ClientSettings(properties=properties, options=named, block_ms=block_ms)


def check_transactional(settings: ClientSettings) -> None:
    """Refuse settings under which a transaction could lose records, or never be committed.

    Raises
    ------
    ConfigError
        With the option and the value that it needs.
    """
    acks = settings.properties.get("acks", "all").lower()
    if acks not in ("all", "-1"):
        raise ConfigError(
            f"Option {settings.option('acks')}={acks} lets the broker lose records that it has "
            "acknowledged, so nothing is written exactly once; leave it out, or give all."
        )
    if settings.properties.get("enable.idempotence", "true").lower() not in ("true", "t", "1"):
        raise ConfigError(
            "Option kafka.enable.idempotence=false lets a producer's retries repeat records, and "
            'transactions need it; leave it out, or choose mode "at-least-once".'
        )
    timeout_ms = settings.transaction_timeout_ms
    delivery_ms = settings.whole("delivery.timeout.ms", timeout_ms)
    if not 0 < delivery_ms <= timeout_ms:
        raise ConfigError(
            f"Option {settings.option('delivery.timeout.ms')}={delivery_ms} must be at most "
            f"kafka.transaction.timeout.ms={timeout_ms}: records that wait longer than their "
            "transaction lives could come after it was aborted. Leave it out, and it is the same."
        )


def _refuse_java(name: str) -> None:
    way_out = REFUSED.get(name)
    for prefix, text in REFUSED_PREFIXES.items():
        if way_out is None and name.startswith(prefix):
            way_out = text
    if way_out is not None:
        raise ConfigError(f"Option {PREFIX}{name} cannot be used: {way_out}.")


def _security(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    mechanism = given.get("sasl.mechanism", given.get("sasl.mechanisms", ""))
    return security_properties({**given, "sasl.mechanism": mechanism})


def _value(name: str, source: str, value: str) -> str:
    """Return a value in librdkafka's units and words."""
    if source == "buffer.memory":
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
        raise ConfigError(f"Option {option} must be a whole number, not {value!r}.") from None
