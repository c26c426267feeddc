"""Schemas by ID from a registry: asked once, and its failures are never the record's fault."""

from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dedup.errors import ConfigError, SourceError
from dedup.sources.kafka import ConfluentAvro, Registry, avro_rows
from dedup.sources.kafka import registry as registry_module
from tests.support.avro import decoded, encoded, record
from tests.support.schema_registry import SchemaRegistry, running_registry


def schema(**fields: Any) -> str:
    return record(*fields.items())


ONE = schema(a="int", b="string")
NEWER = record(("a", "int"), ("b", "string"), ("c", "int", 7))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setattr(registry_module, "_PAUSES_S", (0.01, 0.01))
    with running_registry() as found:
        yield found


def test_records_of_several_writers_come_in_the_readers_schema(server: SchemaRegistry) -> None:
    old, new = server.add(1, ONE), server.add(70_000, NEWER, "orders-value")
    decoder = pickle.loads(pickle.dumps(ConfluentAvro(server.url).decoder(("orders",))))
    values = [
        old + encoded(ONE, {"a": 1, "b": "x"}),
        new + encoded(NEWER, {"a": 2, "b": "y", "c": 3}),
        old + encoded(ONE, {"a": 4, "b": "z"}),
        None,
    ]
    rows = [{"a": 1, "b": "x", "c": 7}, {"a": 2, "b": "y", "c": 3}, {"a": 4, "b": "z", "c": 7}]
    assert decoded(decoder, *values) == ([*rows, None], [None] * 4)
    assert decoded(decoder, *values)[0] == [*rows, None]
    assert server.asked == [
        "/subjects/orders-value/versions/latest", "/schemas/ids/1", "/schemas/ids/70000",
    ]  # fmt: skip


def test_bytes_without_a_known_schema_are_poison_and_looked_up_once(server: SchemaRegistry) -> None:
    good = server.add(1, ONE) + encoded(ONE, {"a": 1, "b": "x"})
    server.add(2, "message M {}", schemaType="PROTOBUF")
    decoder = ConfluentAvro(server.url, ONE).decoder(("orders",))
    unknown = b"\0\0\0\0\x09" + encoded(ONE, {"a": 1, "b": "x"})
    rows, causes = decoded(
        decoder, good, b"", b"\0\0", b"{}{}{}", unknown, unknown, b"\0\0\0\0\2abc", good[:6],
        good + b"x", good,
    )  # fmt: skip
    assert [row is not None for row in rows] == [True, *[False] * 8, True]
    expected = [
        "too few", "too few", "first byte is 123", "no schema with ID 9", "no schema with ID 9",
        "not Avro but PROTOBUF", "not Avro of this schema", "1 bytes are left over",
    ]  # fmt: skip
    for cause, said in zip(causes[1:-1], expected, strict=True):
        assert said in str(cause)
    assert server.asked.count("/schemas/ids/9") == 1


def test_unusable_schemas_are_requested_once_as_well(server: SchemaRegistry) -> None:
    server.add(2, "message M {}", schemaType="PROTOBUF")
    server.add(3, "{}")
    millis, micros = (
        {"type": "long", "logicalType": f"timestamp-{u}"} for u in ("millis", "micros")
    )
    server.add(4, schema(a=millis))
    decoder = ConfluentAvro(server.url, schema(a=micros)).decoder(("orders",))
    rows, causes = decoded(decoder, *[b"\0\0\0\0" + bytes([n]) + b"a" for n in (2, 3, 4)] * 5)
    assert rows == [None] * 15
    assert "not Avro but PROTOBUF" in str(causes[12])
    assert "with ID 3, cannot be read" in str(causes[13])
    assert "a is timestamp-millis, but timestamp-micros in the" in str(causes[14])
    assert server.asked == ["/schemas/ids/2", "/schemas/ids/3", "/schemas/ids/4"]


@pytest.mark.parametrize("schema_id", [2**31, 2**32 - 1])
def test_a_schema_id_beyond_the_signed_range_is_poison(
    server: SchemaRegistry, schema_id: int
) -> None:
    good = server.add(2**31 - 1, ONE) + encoded(ONE, {"a": 1, "b": "x"})
    decoder = ConfluentAvro(server.url, ONE).decoder(("orders",))
    foreign = b"\0" + schema_id.to_bytes(4, "big") + b"ab"
    rows, causes = decoded(decoder, foreign, good)
    assert rows == [None, {"a": 1, "b": "x"}]
    assert causes == [f"The schema registry has no schema with ID {schema_id}.", None]


def test_unknown_ids_are_requested_at_a_bounded_rate_and_again_later(
    server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, slept = [1000.0], list[float]()
    time = SimpleNamespace(monotonic=lambda: now_s[0], sleep=slept.append)
    monkeypatch.setattr(avro_rows, "time", time)
    good = server.add(5000, ONE) + encoded(ONE, {"a": 1, "b": "x"})
    decoder = ConfluentAvro(server.url, ONE).decoder(("orders",))
    unknown = [b"\0" + number.to_bytes(4, "big") + b"ab" for number in range(1, 121)]
    rows, causes = decoded(decoder, *unknown, good, *unknown)
    # Each is judged by the registry's own answer: none for the sake of the bound.
    assert rows == [None] * 120 + [{"a": 1, "b": "x"}] + [None] * 120
    assert causes[120] is None
    assert len(server.asked) == 121
    assert slept == [0.01] * 21
    now_s[0] += avro_rows._UNKNOWN_S
    value = server.add(1, ONE) + good[5:]
    assert decoded(decoder, value, unknown[1])[1][0] is None
    assert len(server.asked) == 123
    assert list(decoder._unknown) == [2], "The list holds nothing older."


def test_schemas_that_refer_to_others_are_resolved(server: SchemaRegistry) -> None:
    def reference(name: str, subject: str) -> dict[str, Any]:
        return {"name": name, "subject": subject, "version": 1}

    kind = {"type": "enum", "name": "n.Kind", "symbols": ["X", "Y"]}
    pair = json.loads(record(("one", "n.Kind"), name="Pair"))
    kinds = [reference("n.Kind", "kinds")]
    server.add(1, json.dumps(kind), "kinds")
    server.add(2, json.dumps(pair), "pairs", references=kinds)
    both = [reference("Pair", "pairs"), *kinds]
    head = server.add(3, schema(p="Pair", k="n.Kind"), "orders-value", references=both)
    pair["fields"][0]["type"] = kind
    whole = schema(p=pair, k="n.Kind")
    decoder = ConfluentAvro(server.url).decoder(("orders",))
    value = {"p": {"one": "X"}, "k": "Y"}
    assert decoded(decoder, head + encoded(whole, value)) == ([value], [None])
    del server.by_subject["kinds", "1"]
    with pytest.raises(SourceError, match="version 1 of kinds"):
        decoded(ConfluentAvro(server.url, whole).decoder(("orders",)), head + b"\0")


def test_schemas_that_refer_to_each_other_end_in_a_cause(server: SchemaRegistry) -> None:
    for name, other in (("A", "B"), ("B", "A")):
        reference = {"name": other, "subject": other, "version": 1}
        server.add(1, record(("x", other), name=name), name, references=[reference])
    _, [cause] = decoded(ConfluentAvro(server.url, ONE).decoder(("orders",)), b"\0\0\0\0\1\0")
    assert cause == "Its schema, with ID 1, cannot be read: A."
    assert len(server.asked) == 3


def test_a_failed_registry_request_is_retried(server: SchemaRegistry) -> None:
    server.add(1, ONE)
    server.failures += [503, 0]
    found = Registry(server.url).by_id(1)
    assert found is not None
    assert found.text == ONE
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [500, 503, 0, 401, 403, 404, 200])
def test_a_registry_that_fails_makes_no_record_poison(server: SchemaRegistry, status: int) -> None:
    good = server.add(1, ONE) + encoded(ONE, {"a": 1, "b": "x"})
    decoder = ConfluentAvro(server.url, ONE).decoder(("orders",))
    server.failures += [status] * 3
    with pytest.raises(SourceError, match="No record was skipped"):
        decoded(decoder, good)
    assert not server.failures
    server.failures.clear()
    assert decoded(decoder, good)[1] == [None]


@pytest.mark.parametrize("status", [None, 404, 500])
@pytest.mark.parametrize(
    "raw",
    [
        b"<html>",
        b"[" * 200_000,
        b'{"schema":' * 20_000,
        b'{"error_code": 1e400}',
        b'{"schema": null}',
        b'{"schema": {"type": "record"}}',
        b'{"schema": "' + b" " * (17 << 20) + b'"}',
        b"\xff\xfe",
        b"5",
    ],
    ids=lambda raw: raw[:9],
)
def test_an_answer_that_is_not_a_registrys_makes_no_record_poison(
    server: SchemaRegistry, raw: bytes, status: int | None
) -> None:
    good = server.add(1, ONE) + encoded(ONE, {"a": 1, "b": "x"})
    server.raw = raw
    server.failures += [status] * 3 if status else []
    with pytest.raises(SourceError, match="No record was skipped"):
        decoded(ConfluentAvro(server.url, ONE).decoder(("orders",)), good)


def test_a_registry_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_PAUSES_S", ())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SourceError, match=f"{url} cannot be reached"):
            Registry(url, timeout_s=1).by_id(1)


def test_the_next_address_answers_for_one_that_does_not(server: SchemaRegistry) -> None:
    server.add(1, ONE)
    assert Registry(["http://127.0.0.1:9", server.url], timeout_s=1).by_id(1) is not None


def test_credentials_are_sent_and_shown_nowhere(server: SchemaRegistry) -> None:
    server.add(1, ONE)
    server.require("u", "secret")
    with pytest.raises(SourceError, match="401") as refused:
        Registry(server.url, user="u", password="wrong-secret").by_id(1)
    assert "wrong-secret" not in str(refused.value)
    known = Registry(server.url, user="u", password="secret", headers={"X-Tenant": "t"})
    assert known.by_id(1) is not None
    assert server.headers[-1]["X-Tenant"] == "t"
    assert "secret" not in repr(known)
    server.authorization = "Bearer tok"
    assert Registry(server.url, token="tok").by_id(1) is not None
    assert "tok'" not in repr(Registry(server.url, token="tok"))


@pytest.mark.parametrize("given", [{"token": "tok-1"}, {"user": "u", "password": "tok-1"}, {}])
def test_headers_are_sent_to_no_other_server(server: SchemaRegistry, given: dict[str, Any]) -> None:
    registry = Registry(server.url, headers={"X-Key": "secret-1"}, **given)
    with running_registry() as other:
        other.add(1, ONE)
        server.redirect = other.url
        with pytest.raises(
            SourceError, match=f"status 30. and redirects to {other.url}/schemas/ids/1"
        ) as no:
            registry.by_id(1)
        assert not other.asked
    server.redirect = server.url.replace("http:", "https:")
    with pytest.raises(SourceError, match="and redirects to https:"):
        registry.by_id(1)
    assert "-1" not in str(no.value)


def test_a_redirect_to_the_same_server_is_followed(server: SchemaRegistry) -> None:
    server.add(1, ONE)
    server.require("u", "secret")
    server.redirect = f"{server.url}/moved"
    known = Registry(server.url, user="u", password="secret", headers={"X-Tenant": "t"})
    assert known.by_id(1) is not None
    assert server.asked == ["/schemas/ids/1", "/moved/schemas/ids/1"]
    assert server.headers[-1]["X-Tenant"] == "t"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "registry:8081"}, "is invalid"),
        ({"url": "http://host?token=secret"}, "'http://host' is invalid"),
        ({"url": "http://u:secret@host"}, "or has a query or credentials"),
        ({"url": "http://host", "user": "u"}, "together"),
        ({"url": "http://host", "user": "u", "password": "p", "token": "t"}, "or a token instead"),
    ],
)
def test_invalid_registry_settings_are_rejected_without_secrets(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        Registry(**given)
    assert "secret" not in str(refused.value)


def test_the_readers_schema_must_be_found_at_the_start(server: SchemaRegistry) -> None:
    with pytest.raises(ConfigError, match="no subject 'orders-value'"):
        ConfluentAvro(server.url).decoder(("orders",))
    with pytest.raises(ConfigError, match="several topics"):
        ConfluentAvro(server.url).decoder(("orders", "more"))
    server.add(1, "{}", "orders-value", schemaType="JSON")
    with pytest.raises(ConfigError, match="not Avro but JSON"):
        ConfluentAvro(server.url).decoder(("orders",))
