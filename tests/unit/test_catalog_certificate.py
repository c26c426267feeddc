from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dedup.catalog.certificate import Certificate, certificate_of, load_certificate
from dedup.catalog.compatibility import create_or_check
from dedup.core.sharding import derive_keys, payload_key, slot_keys, spark_hash_int
from dedup.errors import CatalogError, ConfigError
from dedup.storage import localfile
from dedup.storage.document import to_document
from dedup.storage.root import Root
from tests.support.catalog import QUERY, certificate

BEFORE = Path(__file__).parents[1] / "golden" / "before-0.1.0"
WANTED = certificate(
    shards=3,
    id_columns=(("order", "STRING"), ("ligne n\u00ba", "DECIMAL(38,9)")),
    encoding="composite-v1",
)


def test_the_first_start_creates_the_certificate_and_later_starts_read_it(tmp_path: Path) -> None:
    root = Root(tmp_path)
    assert load_certificate(root, QUERY) is None
    assert create_or_check(root, WANTED) == WANTED
    assert load_certificate(root, QUERY) == WANTED
    assert create_or_check(root, replace(WANTED, birth_batch=9)).birth_batch == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shards": 4}, r"has 4 shards now and had 3; set shards=3"),
        ({"encoding": "utf8-v1"}, r"Another release of rolling-dedup created"),
        ({"stable_timestamps": True}, r"stable_timestamps is True now and was False"),
        ({"slot_keys": (1, 2, 3)}, r"Another release of rolling-dedup .*spreads shards"),
        ({"hash_key_id": 1}, r"Another release of rolling-dedup"),
    ],
)
def test_other_settings_are_refused_with_both_values(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    root = Root(tmp_path)
    create_or_check(root, WANTED)
    with pytest.raises(ConfigError, match=message) as caught:
        create_or_check(root, replace(WANTED, **changed))
    assert "certificate.json" in str(caught.value)
    assert load_certificate(root, QUERY) == WANTED


def test_concurrent_creators_agree_on_one_certificate(tmp_path: Path) -> None:
    def create(batch: int) -> Certificate:
        return create_or_check(Root(tmp_path), replace(WANTED, birth_batch=batch))

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(create, range(8)))
    assert len(found) == 1
    assert found == {load_certificate(Root(tmp_path), QUERY)}


def test_keys_are_independent_and_depend_on_the_query() -> None:
    keys = {*derive_keys(QUERY), *derive_keys("another")}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {16}
    # Fixed forever: catalogs on disk depend on them.
    assert [key.hex() for key in derive_keys("q")] == KEYS_OF_Q


def test_a_secret_makes_other_keys() -> None:
    drawn = derive_keys(QUERY, b"s" * 16)
    assert not {*drawn} & {*derive_keys(QUERY), *derive_keys(QUERY, b"t" * 16)}
    assert payload_key(QUERY, b"s" * 16) != payload_key(QUERY)
    made = replace(WANTED, secret=b"s" * 16)
    assert Certificate.from_bytes(made.to_bytes(), "here") == made
    assert "ssss" not in repr(made)
    assert (b"s" * 16).hex() not in repr(made)


def test_a_catalog_from_before_the_first_release_stops_the_query(tmp_path: Path) -> None:
    root, old = Root(tmp_path), (BEFORE / "catalog.json").read_bytes()
    root.put_bytes(f"{QUERY}/catalog.json", old)
    for action in (
        lambda: load_certificate(root, QUERY),
        lambda: create_or_check(root, WANTED),
        lambda: certificate_of(root, QUERY),
    ):
        with pytest.raises(CatalogError, match=r"before 0\.1\.0.* with commit") as caught:
            action()
        assert caught.value.remedy == "other-version"
    assert not root.exists(f"{QUERY}/certificate.json")
    assert root.read_bytes(f"{QUERY}/catalog.json") == old


def test_a_secret_of_another_start_is_refused(tmp_path: Path) -> None:
    """If two starts begin one query, only one continues."""
    root = Root(tmp_path)
    create_or_check(root, replace(WANTED, secret=b"s" * 16))
    with pytest.raises(CatalogError, match="Another start of this query created its catalog"):
        create_or_check(root, replace(WANTED, secret=b"t" * 16))


@pytest.mark.parametrize("mount", ["exclusive", "replaces"])
def test_one_of_two_first_starts_continues_on_every_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str
) -> None:
    """Mounts of object stores replace a file that another start has created a moment before."""
    root, first, second = (
        Root(tmp_path),
        *(replace(WANTED, secret=one * 16) for one in (b"1", b"2")),
    )
    if mount == "replaces":
        monkeypatch.setattr(localfile, "_link", lambda *_: None)
        monkeypatch.setattr(Path, "exists", lambda _: False)
    between: list[Certificate] = []

    def point(name: str, *_: object) -> None:
        if name == "certificate.put.before" and not between:
            between.append(first)
            assert create_or_check(root, first) == first

    monkeypatch.setattr("dedup.catalog.compatibility.faults.point", point)
    continues = []
    for start in (second, first, second):
        with suppress(CatalogError):
            create_or_check(root, start)
            continues.append(start)
    assert continues == ([first] if mount == "exclusive" else [second, second])
    assert between == [first]


@pytest.mark.parametrize("secret", ["", "00", "zz" * 16, 7])
def test_a_certificate_with_a_malformed_secret_is_damaged(secret: object) -> None:
    fields = json.loads(WANTED.to_bytes())
    del fields["checksum"], fields["format"]
    with pytest.raises(CatalogError, match="cannot be used"):
        Certificate.from_bytes(to_document({**fields, "secret": secret}, version=1), "here")


KEYS_OF_Q = ["9ffa05e0adcf9eb02d774153e45a69dc", "4d0769687426f7ca42015dd5ad49d891"]


@pytest.mark.parametrize("value", ["0", "1"])
def test_murmur3_matches_published_values(value: str) -> None:
    # SELECT hash(0), hash(1) of Spark.
    assert spark_hash_int(int(value)) == {0: 933211791, 1: -559580957 & 0xFFFFFFFF}[int(value)]


@pytest.mark.parametrize(
    ("shards", "partitions"), [(1, 1), (2, 2), (200, 200), (7, 3), (3, 7), (10, 4)]
)
def test_slot_keys_spread_as_evenly_as_possible(shards: int, partitions: int) -> None:
    keys = slot_keys(shards, partitions)
    assert len(set(keys)) == shards
    assert all(0 <= key < 2**31 for key in keys)
    # The sign bit matters: Spark takes pmod of a signed number.
    signed = [h - 2**32 if (h := spark_hash_int(key)) >= 2**31 else h for key in keys]
    assert [h % partitions for h in signed] == [i % partitions for i in range(shards)]
