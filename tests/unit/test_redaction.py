"""No text that is cited, and no repr, shows a secret of the options."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from dedup import dedup_by_id
from dedup.cli.app import app
from dedup.cli.failures import explain
from dedup.errors import ConfigError
from dedup.errors.cause import cause_of
from dedup.errors.redaction import without_secrets
from dedup.sinks.files.options import files_options
from dedup.sinks.kafka.options import kafka_options
from dedup.sinks.lakehouse.iceberg import open_iceberg
from dedup.sinks.lakehouse.options import DELTA, ICEBERG, lake_options
from dedup.sinks.ledger import FORMAT, Ledger
from dedup.sinks.mysql.options import mysql_options
from dedup.sinks.postgres.connections import without_password
from dedup.sinks.postgres.options import postgres_options
from dedup.sources.kafka import Registry
from dedup.sources.kafka.client_options import client_settings
from dedup.storage.document import to_document
from dedup.storage.root import Root

SECRET = "Top/Se'cret+1"
CHECKPOINT = {"checkpointLocation": f"s3a://AK:{SECRET}@b/checkpoint"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.password", SECRET),
        ("ssl.key.password", SECRET),
        ("ssl.key.pem", SECRET),
        ("sasl.oauthbearer.client.secret", SECRET),
        ("sasl.jaas.config", f'org.Login required username="u" password="{SECRET}";'),
        ("credential", f"client:{SECRET}"),
        ("s3.secret-access-key", SECRET),
        ("s3.session-token", SECRET),
        ("adls.account-key", SECRET),
        ("uri", f"postgresql+psycopg://user:{SECRET}@host/x"),
        ("uri", f"https://account.blob.core.windows.net/x?sp=r&sig={SECRET}"),
        ("dsn", f"host=h user=u password='{SECRET}'"),
    ],
)
@pytest.mark.parametrize("form", [str, lambda text: quote(text, safe=""), repr])
def test_a_secret_of_the_options_is_hidden(
    name: str, value: str, form: Callable[[str], str]
) -> None:
    for text in (f"cannot use {value}", f"cannot use {form(SECRET)} at host"):
        hidden = without_secrets(text, {name: value})
        assert SECRET not in hidden, hidden
        assert form(SECRET).strip("'\"") not in hidden, hidden
        assert hidden.startswith("cannot use ")


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (r"password='hunter2\' x", "password=*** x"),
        (r'password="hunter2\" x', "password=*** x"),
        ("password='hunter2 x", "password=*** x"),
        ("password=...hunter2", "password=***"),
        ("url=http://h/?a.sig=hunter2", "url=http://h/?a.sig=***"),
    ],
)
def test_a_secret_that_belongs_to_no_option_is_hidden(text: str, hidden: str) -> None:
    assert without_secrets(text, {}) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "timestamp='auth_token': the stream has no such column",
        "give password='...'",
        "signal.x=5",
        # Minutes, if each word within the word were followed to its end.
        "token" * 50_000,
        "Connection to http://host:8080/a@b refused",
        "Unexpected token: 'a', no password is given",
        "abfss://container@account.dfs.core.windows.net/x",
        "s3://bucket/a:b@c",
    ],
)
def test_text_without_secrets_stays_unchanged(text: str) -> None:
    options = {
        "sasl.oauthbearer.token.endpoint.url": "http://host:8080/a@b",
        "token-refresh-enabled": "true",
        "ssl.key.location": "/etc/key",
    }
    assert without_secrets(text, options) == text


@pytest.mark.parametrize(
    "text",
    [
        f'kafka.sasl.jaas.config=Login required password="a\\"{SECRET}";',
        f"postgresql://h/d?user=u&sslpassword={quote(SECRET)}",
        f"https://b/x?X-Amz-Credential=AK&X-Amz-Signature={quote(SECRET)}&X-Amz-Expires=9",
        f"https://b/x?AWSAccessKeyId=AK&Signature={quote(SECRET)}",
        f"https://b/x?sig={quote(SECRET)}&se=1",
        f"Endpoint=sb://h/;SharedAccessKeyName=k;SharedAccessKey={quote(SECRET)}",
        f"fs.azure.account.key.a.dfs.core.windows.net={quote(SECRET)}",
        f"'aws_secret_access_key': {SECRET!r}, 'region': 'x'",
        f'{{"secret.key": "{SECRET}"}}',
        f"no folder s3a:/AK:{SECRET}@b/x",
    ],
)
def test_a_secret_in_a_cited_text_is_hidden_without_knowing_the_options(text: str) -> None:
    error = "org.apache.spark.SparkException: " + text
    for shown in (
        without_secrets(text, {}),
        explain(ConfigError(text)).message,
        explain(OSError(2, "No such file", text)).message,
        cause_of(error),
    ):
        assert "***" in shown
        assert SECRET not in shown
        assert quote(SECRET) not in shown


def test_advice_about_a_secret_stays() -> None:
    for text in ('give password="..."', "sig=...", "token.endpoint.url=http://h", "design=9"):
        assert without_secrets(text, {}) == text


CLIENT = (
    "kafka.security.protocol=SASL_SSL\nkafka.sasl.mechanism=PLAIN\nkafka.sasl.username=u\n"
    f"kafka.socket.timeout.ms=10\nkafka.sasl.password={SECRET}\n"
)
JAAS = (
    "kafka.sasl.mechanism=OTHER\n"
    f'kafka.sasl.jaas.config=a.PlainLoginModule required username=u password="{SECRET}";\n'
)


@pytest.mark.parametrize("last", ["", "--json"])
@pytest.mark.parametrize(
    ("arguments", "content"),
    [
        ("check S3", ""),
        ("check CK --catalog S3", ""),
        ("check CK --log S3", ""),
        ("check CK --conf spark.hadoop.fs.s3a.secret.key:SECRET", ""),
        ("check CK --conf spark.hadoop.fs.s3a.secret.key=SECRET --all", ""),
        ("check CK --source-option kafka.sasl.password;SECRET", ""),
        ("check CK --source-option kafka.sasl.jaas.config=password=SECRET --all", ""),
        ("check CK --sink-option kafka.sasl.password=SECRET --all", ""),
        ("check CK --properties FILE", f"spark.hadoop.fs.s3a.secret.key {SECRET}"),
        ("check CK --properties FILE", f"spark.hadoop.fs.s3a.secret.key \\\n{SECRET}"),
        ("sink inspect dedup_files path=S3", ""),
        ("sink inspect dedup_files path=CK --checkpoint S3", ""),
        ("sink inspect dedup_files path=CK --properties S3", ""),
        ("sink inspect KAFKA --properties FILE", SECRET),
        ("sink inspect KAFKA --properties FILE", f"{JAAS}\nkafka.max.block.ms=500"),
        ("sink inspect KAFKA --properties FILE", f"{CLIENT}kafka.max.block.ms=500"),
        ("sink inspect KAFKA --properties FILE", f"{CLIENT}kafka.no.such={SECRET}"),
        (
            "sink inspect KAFKA --properties FILE",
            f"kafka.socket.timeout.ms=10\nkafka.ssl.key.pem={SECRET}",
        ),
    ],
)
def test_check_and_sink_inspect_show_no_secret(
    arguments: str, content: str, last: str, tmp_path: Path
) -> None:
    if "KAFKA" in arguments:
        pytest.importorskip("confluent_kafka")
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "metadata").write_text('{"id":"6f9619ff-8b86-4d01-b42d-00cf4fc964ff"}')
    (tmp_path / "file").write_text(content)
    for name, value in {
        "KAFKA": "dedup_kafka topic=t kafka.bootstrap.servers=127.0.0.1:9",
        "CK": f"{tmp_path}/ck", "FILE": f"{tmp_path}/file", "SECRET": SECRET, "S3": uri(),
    }.items():  # fmt: skip
        arguments = arguments.replace(name, value)
    done = CliRunner().invoke(app, [*arguments.split(), *last.split()])
    assert isinstance(done.exception, SystemExit | None)
    assert done.output
    for form in (SECRET, quote(SECRET, safe=""), repr(SECRET)[1:-1], SECRET.split("/")[1]):
        assert form not in done.output


def uri(user: str = "AK", rest: str = "b/x") -> str:
    return f"s3://{user}:{SECRET}@{rest}"


def iceberg(**given: str) -> object:
    named = {f"catalog.{name}": value for name, value in given.items()}
    return open_iceberg(
        lake_options(ICEBERG, {"table": "a.b", "checkpointLocation": "/ck", **named})
    )


SHOWN: dict[str, Callable[[], Any]] = {
    "catalog": lambda: dedup_by_id(
        "a", horizon="1 day", timestamp="t", catalog=f"s3://AK:{quote(SECRET, safe='')}@b/x"
    ),
    "its options": lambda: (
        dedup_by_id(
            "a", horizon="1 day", timestamp="t", catalog=f"s3://AK:{quote(SECRET, safe='')}@b/x"
        ).options
    ),
    "catalog with blanks": lambda: Root(f" {uri()}"),
    "catalog that is not a URI": lambda: Root(uri()),
    "kafka": lambda: kafka_options(
        {"kafka.bootstrap.servers": "h", "topic": "t", "kafka.sasl.password": SECRET} | CHECKPOINT
    ),
    "postgres": lambda: postgres_options(
        {"dsn": f"postgresql://u:{SECRET}@h/d", "table": "t"} | CHECKPOINT
    ),
    "mysql": lambda: mysql_options(
        {"mysql.host": "h", "mysql.password": SECRET, "table": "t"} | CHECKPOINT
    ),
    "files": lambda: files_options({"path": uri()} | CHECKPOINT),
    "delta": lambda: lake_options(DELTA, {"path": "s3://b/x"} | CHECKPOINT),
    "delta with credentials": lambda: lake_options(DELTA, {"path": uri()} | CHECKPOINT),
    "iceberg": lambda: lake_options(
        ICEBERG, {"table": "a.b", "catalog.uri": f"mysql://u:{SECRET}@h/x"} | CHECKPOINT
    ),
    "iceberg without a type": lambda: iceberg(uri=f"mysql://u:{SECRET}@127.0.0.1:9/x"),
    "iceberg by sql": lambda: iceberg(type="sql", uri=f"postgresql+no://u:{SECRET}@127.0.0.1:9/x"),
    "iceberg by rest": lambda: iceberg(
        type="rest", uri="http://127.0.0.1:9", credential=f"id:{SECRET}"
    ),
    "registry": lambda: Registry("http://h", user="u", password=SECRET),
    "Spark": lambda: explain(RuntimeError(f"cannot open s3a://AK:{SECRET}@b/x")),
}


@pytest.mark.parametrize("what", SHOWN)
def test_neither_errors_nor_repr_show_a_secret(what: str) -> None:
    if "iceberg" in what:
        pytest.importorskip("pyiceberg")
    try:
        text = repr(SHOWN[what]())
    except Exception as error:
        text = "".join(traceback.format_exception(error))
    for form in (SECRET, quote(SECRET, safe=""), repr(SECRET)[1:-1]):
        # What pytest and the traceback show of this file's own lines has the name alone.
        assert form not in text


def test_an_invalid_header_is_reported_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own error for a header with a line end contains the value."""
    monkeypatch.setattr("dedup.sources.kafka.registry._PAUSES_S", ())
    for given in ({"token": f"{SECRET}\n"}, {"headers": {"X-Key": f"{SECRET}\n"}}):
        with pytest.raises(Exception, match="Invalid header value") as refused:
            Registry("http://127.0.0.1:9", **given).by_id(1)
        assert SECRET not in str(refused.value)


def test_a_delta_path_with_credentials_is_rejected_and_its_checkpoint_continues(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="path='s3://b/x' was given with credentials"):
        lake_options(DELTA, {"path": uri(), "checkpointLocation": str(tmp_path)})
    signed = f"az://container/x?sig={SECRET}"
    with pytest.raises(ConfigError, match="path='az://container/x' was given with cred") as refused:
        lake_options(DELTA, {"path": signed, "checkpointLocation": str(tmp_path)})
    assert SECRET not in str(refused.value)
    lake_options(DELTA, {"path": "s3://b/a:b@c", "checkpointLocation": "/c"})
    for sink, table in (("unnamed", {}), ("query", {"table ID": "id"})):
        written_before = to_document({"path": uri(), **table}, version=FORMAT)
        Root(f"{tmp_path}/{sink}").create_bytes("sink.json", written_before)
        Ledger(str(tmp_path), sink).note_published(3)
        again = Ledger(str(tmp_path), sink)
        again.settle({"path": "s3://b/x"}, table_id=table.get("table ID"))
        assert again.published() == 3
    kept = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET in text for text in kept)
    with pytest.raises(ConfigError, match="has published with 's3://b/x'"):
        again.settle({"path": "s3://b/y"}, table_id="other")


def test_kafka_and_postgres_hide_by_the_same_rule() -> None:
    settings = client_settings(
        {"kafka.bootstrap.servers": "h", "kafka.sasl.oauthbearer.client.secret": SECRET}
    )
    assert settings.without_secrets(f"refused {SECRET}") == "refused ***"
    url = f"postgresql://u:{quote(SECRET, safe='')}@h/d"
    assert SECRET not in without_password(url, f"cannot use {SECRET}")
    for dsn in ("password=plain-1 host=h", "sslkey=/k sslpassword=plain-1"):
        assert without_password(dsn, "cannot use plain-1") == "cannot use ***"
