"""What a query's memory was made with, against what the query is started with."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.catalog.certificate import Certificate, load_certificate
from dedup.catalog.compatibility import check_fit
from dedup.catalog.definition import Definition, change_token, encoded_kind
from dedup.errors import CatalogError, ConfigError
from dedup.storage.document import to_document
from dedup.storage.root import Root
from tests.support.catalog import QUERY, certificate

ORDER = Definition(expression="order_id", kind="string")
TIME = Definition(expression="ts", kind="timestamp")
BORN = certificate(
    id_columns=(("order_id", "string"),),
    encoding="dedup-id-1",
    timestamp_source="column ts timestamp",
    timestamp_definition=TIME,
)


def fits(wanted: Certificate, found: Certificate = BORN, *accepted: str) -> None:
    check_fit(found, wanted, where="certificate.json", accepted=accepted)


def with_id(*definitions: Definition) -> Certificate:
    columns = tuple((one.expression, one.kind) for one in definitions)
    return replace(BORN, id_columns=columns, id_definitions=definitions)


def refusal(wanted: Certificate, found: Certificate = BORN, *accepted: str) -> str:
    with pytest.raises(ConfigError) as caught:
        fits(wanted, found, *accepted)
    assert caught.value.remedy == "changed-settings"
    assert "\n" not in caught.value.text
    return caught.value.text


def test_another_name_for_the_same_bytes_fits() -> None:
    fits(BORN)
    fits(replace(BORN, id_columns=(("k", "string"),), timestamp_source="column t timestamp"))


@pytest.mark.parametrize(
    ("before", "after"),
    [("decimal(10,2)", "decimal(12,2)"), ("interval day to second", "interval hour to second"),
     ("time(0)", "time(6)"), ("STRING", "string")],
)  # fmt: skip
def test_types_that_encode_alike_fit(before: str, after: str) -> None:
    born = with_id(replace(ORDER, kind=before))
    fits(with_id(replace(ORDER, kind=after)), born)


@pytest.mark.parametrize(
    ("before", "after"),
    [("decimal(10,2)", "decimal(10,3)"), ("int", "bigint"), ("string", "binary"),
     ("timestamp", "timestamp_ntz"), ("interval day", "interval year")],
)  # fmt: skip
def test_types_that_encode_differently_cannot_be_accepted(before: str, after: str) -> None:
    assert encoded_kind(before) != encoded_kind(after)
    born, wanted = (replace(ORDER, kind=kind) for kind in (before, after))
    token = change_token("ID", [born], [wanted])
    text = refusal(with_id(wanted), with_id(born), token)
    assert f"The ID is order_id ({after}) now and was order_id ({before})." in text
    assert "cast the column back" in text
    assert "accept=" not in text


def test_a_changed_expression_is_rejected_and_both_expressions_are_named() -> None:
    lower = Definition(expression="lower(id)", kind="string", inputs=(("id", "string"),))
    upper = replace(lower, expression="upper(id)")
    text = refusal(with_id(upper), with_id(lower))
    assert "The ID is upper(id) (string) now and was lower(id) (string). Use the earlier" in text
    assert "withColumnRenamed" not in text
    zoned, strict = replace(lower, time_zone="UTC"), replace(lower, ansi="true")
    for before, change, told in (
        (lower, {"inputs": (("id", "int"),)}, "of id int now and was {} of id string."),
        (zoned, {"time_zone": "Asia/Tokyo"}, "zone Asia/Tokyo now and was {} in the time zone UTC"),
        (strict, {"ansi": "false"},
         "ansi.enabled=false now and was {} with spark.sql.ansi.enabled=true"),
    ):  # fmt: skip
        said = refusal(with_id(replace(before, **change)), with_id(before))
        assert told.format("lower(id) (string)") in said


def test_a_renamed_column_is_renamed_back_or_accepted_with_a_token() -> None:
    renamed = with_id(Definition(expression="oid", kind="string"))
    text = refusal(renamed)
    assert "events.withColumnRenamed('oid', 'order_id')" in text
    (word,) = re.findall(r"accept='(\w+)'", text)
    fits(renamed, BORN, word)
    # No other change, and not the way back.
    another = with_id(Definition(expression="another", kind="string"))
    assert "The ID is another" in refusal(another, BORN, word)
    refusal(BORN, renamed, word)


def test_a_composite_id_must_keep_the_order_and_number_of_its_columns() -> None:
    line = Definition(expression="line", kind="string")
    born = with_id(ORDER, line)
    swapped, short = refusal(with_id(line, ORDER), born), refusal(BORN, born)
    assert "line (string) and order_id (string) now and was order_id (string) and line" in swapped
    assert "The ID is order_id (string) now and was order_id (string) and line (string). " in short


def test_a_renamed_timestamp_needs_its_own_token_and_another_clock_is_rejected() -> None:
    renamed = replace(BORN, timestamp_definition=Definition(expression="at", kind="timestamp"))
    text = refusal(renamed)
    assert "The timestamp is at (timestamp) now and was ts (timestamp)." in text
    (word,) = re.findall(r"accept='(\w+)'", text)
    fits(renamed, BORN, word)
    # The same change of the ID has another word.
    old, new = ([one.timestamp_definition] for one in (BORN, renamed))
    assert word != change_token("ID", old, new)
    refusal(renamed, BORN, change_token("ID", old, new))
    # A different kind of clock is not a new name of the same clock.
    arrival = Definition(expression="processing time", kind="")
    text = refusal(replace(BORN, timestamp_definition=arrival))
    assert "The timestamp is processing time now and was ts (timestamp)." in text
    assert "accept=" not in text


def test_a_changed_id_and_a_changed_timestamp_are_accepted_with_both_words() -> None:
    other = with_id(Definition(expression="oid", kind="string"))
    other = replace(other, timestamp_definition=Definition(expression="at", kind="timestamp"))
    (first, second), *rest = re.findall(r"accept=\['(\w+)', '(\w+)'\]", refusal(other))
    assert rest == [(first, second)], "both sentences name both words"
    for word in (first, second):
        assert f"accept=['{first}', '{second}']" in refusal(other, BORN, word)
    fits(other, BORN, first, second)


def test_all_changed_settings_are_reported_at_once() -> None:
    text = refusal(replace(BORN, shards=3, stable_timestamps=True))
    assert "3 shards now and had 2" in text
    assert "stable_timestamps is True now and was False" in text
    assert "start over with a new checkpoint" in text


texts = st.text(max_size=12)
definitions = st.builds(
    Definition,
    expression=texts,
    kind=texts,
    inputs=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
    time_zone=texts,
    ansi=texts,
)


@given(st.lists(definitions, min_size=1, max_size=3), definitions)
def test_certificates_come_back_from_their_bytes(ids: list[Definition], time: Definition) -> None:
    made = replace(
        BORN,
        id_columns=tuple(("n", "k") for _ in ids),
        id_definitions=tuple(ids),
        timestamp_definition=time,
    )
    assert Certificate.from_bytes(made.to_bytes(), "here") == made
    fits(made, made)


@pytest.mark.parametrize(
    "broken",
    [
        {"id_definitions": []},
        {"id_definitions": [{"expression": "id"}]},
        {"timestamp_definition": None},
        {"timestamp_definition": {**asdict(TIME), "inputs": [["a"]]}},
        {"timestamp_definition": {**asdict(TIME), "more": 1}},
    ],
)
def test_definitions_that_make_no_sense_stop_the_query(tmp_path: Path, broken: dict) -> None:
    fields = json.loads(BORN.to_bytes()) | broken
    version = fields.pop("format")
    del fields["checksum"]
    root = Root(tmp_path)
    root.put_bytes(f"{QUERY}/certificate.json", to_document(fields, version=version))
    with pytest.raises(CatalogError, match="cannot be used"):
        load_certificate(root, QUERY)
