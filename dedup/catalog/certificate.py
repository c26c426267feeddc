"""The birth certificate of a query's catalog, with the secret of its hash keys.

State and catalog of a query are only valid under the settings that they were created with. Another
ID column of the same type would silently drop unique rows. So these settings are written once, and
every task compares its own settings with the certificate.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from dedup.catalog.definition import Definition
from dedup.catalog.layout import certificate_path, old_certificate_path
from dedup.errors import CatalogError, ConfigError, OtherRelease, before_release
from dedup.storage.document import from_document, to_document
from dedup.storage.root import ObjectMissing, Root
from dedup.values.parse import (
    OtherVersion,
    Parser,
    boolean,
    count,
    hash_key_id,
    integer,
    name,
    record,
    row,
    text,
    tuple_of,
)

CERTIFICATE_FORMAT = 1
SECRET_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Settings that must never change in the life of a query."""

    #: Spark's query ID, the same over all restarts from one checkpoint.
    query_id: str
    #: Name and Spark type of each ID column, in order.
    id_columns: tuple[tuple[str, str], ...]
    #: Name of the rule by which an ID becomes key bytes.
    encoding: str
    #: Origin of timestamps, such as ``"column ts"`` or ``"processing time"``.
    timestamp_source: str
    #: Whether every copy of a record carries the same time.
    stable_timestamps: bool
    shards: int
    #: The grouping key of each shard, from `slot_keys`.
    slot_keys: tuple[int, ...]
    #: ID of the key of the hashes in filters and segments.
    hash_key_id: int
    #: First micro-batch of the catalog. It may differ from that in the settings of a later task.
    birth_batch: int
    #: Definition of each column of the ID.
    id_definitions: tuple[Definition, ...]
    timestamp_definition: Definition
    #: Random bytes from which, with the query ID, all hash keys derive. No screen, log or error
    #: shows it.
    secret: bytes = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return canonical JSON: the same bytes from every creator."""
        # Write the ID as text, because some readers round JSON numbers above 2**53.
        texts = {"secret": self.secret.hex(), "hash_key_id": f"{self.hash_key_id:016x}"}
        return to_document(asdict(self) | texts, version=CERTIFICATE_FORMAT)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Certificate:
        """Return the certificate, or raise CatalogError, which calls the bytes ``where``."""
        try:
            return cls._from_fields(from_document(data, version=CERTIFICATE_FORMAT))
        except OtherVersion as exc:
            raise OtherRelease.at(f"the birth certificate {where}", exc) from exc
        except ValueError as exc:
            raise CatalogError(
                f"The birth certificate {where} cannot be used: {exc}. It was damaged, or another "
                "program wrote it. Restore it from a backup.",
                remedy="damaged-certificate",
            ) from exc

    @classmethod
    def _from_fields(cls, fields: dict[str, Any]) -> Certificate:
        read = cls(**record(fields, _PARSERS))
        if len(read.secret) != SECRET_BYTES:
            raise ValueError(f"its secret has {len(read.secret)} bytes")
        if len(read.id_definitions) != len(read.id_columns):
            raise ValueError(f"{len(read.id_columns)} ID columns, but not as many definitions")
        if len(read.slot_keys) != read.shards or len(set(read.slot_keys)) != read.shards:
            raise ValueError(f"{read.shards} shards, but {len(set(read.slot_keys))} slot keys")
        return read


_PARSERS: dict[str, Parser] = {
    "query_id": name,
    "id_columns": tuple_of(row(text, text)),
    "encoding": text,
    "timestamp_source": text,
    "stable_timestamps": boolean,
    "shards": lambda value: integer(value, 1),
    "slot_keys": tuple_of(count),
    "hash_key_id": hash_key_id,
    "birth_batch": count,
    "id_definitions": tuple_of(Definition.from_json),
    "timestamp_definition": Definition.from_json,
    "secret": lambda value: bytes.fromhex(text(value)),
}


def has_learned(query_id: str) -> bool:
    """Return whether a query begins with the IDs of history, and never without a certificate.

    `dedup.tools.bootstrap` gives such a query a UUID of version 8 (RFC 9562, section 5.8).
    """
    with suppress(ValueError):
        return UUID(query_id).version == 8
    return False


def load_certificate(root: Root, query_id: str) -> Certificate | None:
    """Return a query's certificate, or None.

    Raises CatalogError if it is damaged, or from before the first release.
    """
    try:
        return read_certificate(root, certificate_path(query_id))
    except ObjectMissing:
        if root.exists(old_certificate_path(query_id)):
            raise OtherRelease(
                before_release(f"The catalog {root.url(query_id)}"), remedy="other-version"
            ) from None
        return None


def certificate_of(root: Root, query_id: str) -> Certificate:
    """Return a query's certificate. Raises ConfigError if it is missing."""
    certificate = load_certificate(root, query_id)
    if certificate is None:
        raise no_catalog(root, query_id)
    return certificate


def no_catalog(root: Root, query_id: str) -> ConfigError:
    return ConfigError(
        f"{root.url()} holds no catalog of query {query_id}. Use the root that the query's option "
        "`catalog` names.",
        remedy="missing-catalog",
    )


def read_certificate(root: Root, name: str) -> Certificate:
    """Return the certificate at ``name``, or raise ObjectMissing if there is none."""
    return root.read(name, lambda data: Certificate.from_bytes(data, root.url(name)))
