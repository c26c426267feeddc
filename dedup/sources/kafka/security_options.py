"""How Kafka's Java client is told of certificates and credentials, in librdkafka's properties.

Java keeps certificates in stores of several types (KIP-651 brought PEM) and credentials in a JAAS
line; librdkafka takes PEM, PKCS#12, and a user name with a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dedup.errors import ConfigError

_TRUST, _KEYS = "ssl.truststore.", "ssl.keystore."
_PKCS12_SUFFIXES = (".p12", ".pfx")
_MODULE = re.compile(r"\s*([\w.$]+)\s+\w+\s*(.*?)\s*;?\s*", re.DOTALL)
_OPTION = re.compile(r"""\s*([\w.-]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"']+)""")
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def security_properties(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return librdkafka's properties for those of Java's names that it lacks.

    Parameters
    ----------
    given : mapping of str to str
        Options without ``kafka.``, in lower case.

    Returns
    -------
    dict of str to (str, str)
        Each property with the name of the option that it comes from, and its value.

    Raises
    ------
    ConfigError
        For stores of a type that OpenSSL cannot read and login modules that are Java code, with the
        way out. No text holds a value of an option.
    """
    return _truststore(given) | _keystore(given) | _jaas(given)


def is_java_security(name: str) -> bool:
    """Return whether `security_properties` translates or refuses the option itself."""
    return name.startswith((_TRUST, _KEYS)) or name == "sasl.jaas.config"


def _truststore(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = [name for name in given if name.startswith(_TRUST)]
    if not names:
        return {}
    kind = given.get(f"{_TRUST}type", "JKS").upper()
    if f"{_TRUST}certificates" in given:
        found = {"ssl.ca.pem": f"{_TRUST}certificates"}
    elif kind == "PEM":
        found = {"ssl.ca.location": f"{_TRUST}location"}
    else:
        named = kind if f"{_TRUST}type" in given else "JKS, Java's default"
        raise ConfigError(
            f"Option kafka.{sorted(names)[0]} names a store of type {named}, which only Java "
            "reads. Write its certificates as PEM, keytool -list -rfc -keystore STORE > ca.pem, "
            'and give kafka.ssl.truststore.type "PEM" and kafka.ssl.truststore.location "ca.pem", '
            "a path that every machine of the cluster has."
        )
    return _taken(given, found, unused=[f"{_TRUST}password"], kind="PEM certificates")


def _keystore(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    names = [name for name in given if name.startswith(_KEYS)]
    if not names:
        return {}
    place = given.get(f"{_KEYS}location", "")
    of_suffix = "PKCS12" if place.lower().endswith(_PKCS12_SUFFIXES) else "JKS"
    kind = given.get(f"{_KEYS}type", of_suffix).upper()
    if f"{_KEYS}key" in given or f"{_KEYS}certificate.chain" in given:
        found = {"ssl.key.pem": f"{_KEYS}key", "ssl.certificate.pem": f"{_KEYS}certificate.chain"}
        return _taken(given, found, unused=[f"{_KEYS}password"], kind="PEM keys")
    if kind == "PEM":
        # Java's file holds the private key and the chain; OpenSSL finds each of them in it.
        found = {
            "ssl.key.location": f"{_KEYS}location",
            "ssl.certificate.location": f"{_KEYS}location",
        }
        return _taken(given, found, unused=[f"{_KEYS}password"], kind="PEM keys")
    if kind == "PKCS12":
        found = {f"{_KEYS}location": f"{_KEYS}location", f"{_KEYS}password": f"{_KEYS}password"}
        return _taken(given, found, unused=[], kind="PKCS#12")
    raise ConfigError(
        f"Option kafka.{sorted(names)[0]} names a store of type {kind}, which only Java reads. "
        "Convert it, keytool -importkeystore -srckeystore STORE -destkeystore keys.p12 "
        '-deststoretype PKCS12, and give kafka.ssl.keystore.type "PKCS12" and '
        'kafka.ssl.keystore.location "keys.p12", a path that every machine of the cluster has.'
    )


def _taken(
    given: Mapping[str, str], found: Mapping[str, str], *, unused: list[str], kind: str
) -> dict[str, tuple[str, str]]:
    missing = [source for source in found.values() if source not in given]
    if missing:
        raise ConfigError(f"Option kafka.{missing[0]} is missing: {kind} cannot be used without.")
    for name in unused:
        if name in given:
            raise ConfigError(
                f"Option kafka.{name} has no meaning for {kind}, for Java's client neither: leave "
                "it out. The password of a private key is kafka.ssl.key.password."
            )
    return {name: (source, given[source]) for name, source in found.items()}


def _jaas(given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    text = given.get("sasl.jaas.config")
    if text is None:
        return {}
    read = _MODULE.fullmatch(text)
    if read is None:
        raise ConfigError(
            "Option kafka.sasl.jaas.config cannot be read; give kafka.sasl.username and "
            "kafka.sasl.password in its place."
        )
    module, options = read[1].rpartition(".")[2], _jaas_options(read[2])
    _check_module(module, given.get("sasl.mechanism", "").upper())
    missing = {"username", "password"} - set(options)
    if missing or set(options) - {"username", "password"}:
        wrong = f"lacks {sorted(missing)[0]}" if missing else "has other options besides"
        raise ConfigError(
            f"Option kafka.sasl.jaas.config {wrong}: {module} is translated where it has username "
            "and password and nothing else; give kafka.sasl.username and kafka.sasl.password."
        )
    return {
        f"sasl.{name}": ("sasl.jaas.config", options[name]) for name in ("username", "password")
    }


def _jaas_options(text: str) -> dict[str, str]:
    found, position = {}, 0
    while position < len(text):
        option = _OPTION.match(text, position)
        if option is None:
            raise ConfigError(
                "Option kafka.sasl.jaas.config cannot be read: its options are to be written "
                'username="..." password="...";'
            )
        value = option[2]
        quoted = value[0] in "\"'"
        found[option[1]] = re.sub(r"\\(.)", r"\1", value[1:-1]) if quoted else value
        position = option.end()
    return found


def _check_module(module: str, mechanism: str) -> None:
    """Refuse modules that are Java code, and a mechanism that is not the module's."""
    if module == "Krb5LoginModule":
        raise ConfigError(
            "Option kafka.sasl.jaas.config asks for Kerberos by a Java module. librdkafka has its "
            "own: give kafka.sasl.mechanism=GSSAPI, kafka.sasl.kerberos.service.name, "
            ".principal and .keytab. The wheels of confluent-kafka lack it; install it with pip "
            "install --no-binary confluent-kafka confluent-kafka on machines that have librdkafka "
            "with libsasl2."
        )
    if module == "OAuthBearerLoginModule":
        raise ConfigError(
            "Option kafka.sasl.jaas.config asks for OAuth by a Java module. librdkafka has its "
            "own: give kafka.sasl.mechanism=OAUTHBEARER, kafka.sasl.oauthbearer.method=oidc, "
            "kafka.sasl.oauthbearer.client.id, .client.secret and .token.endpoint.url."
        )
    wanted = {"PlainLoginModule": ("PLAIN",), "ScramLoginModule": _SCRAM}.get(module)
    if wanted is None:
        raise ConfigError(
            f"Option kafka.sasl.jaas.config names the module {module}, which is Java code. Those "
            "of PLAIN and SCRAM are translated; for others give librdkafka's own kafka.sasl.* "
            "options."
        )
    if mechanism not in wanted:
        raise ConfigError(
            f"Option kafka.sasl.mechanism must be {' or '.join(wanted)} for the {module} of "
            "kafka.sasl.jaas.config."
        )
