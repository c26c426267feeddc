"""The birth certificate of a query's catalog, with the secret of its hash keys.

State and catalog of a query are only valid under the settings that they were created with. Another
ID column of the same type would silently drop unique rows. So these settings are written once, and
every task compares its own settings with the certificate.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dedup.catalog.definition import Definition
from dedup.catalog.document import checksum, from_document, to_document
from dedup.catalog.layout import certificate_path
from dedup.catalog.root import ObjectMissing, Root
from dedup.core.parse import (
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
from dedup.errors import CatalogError, ConfigError, OtherRelease

#: Format that this release writes. The release also reads the older formats 1 and 2.
CERTIFICATE_FORMAT = 3
_WITHOUT_SECRET = 2
_WITHOUT_DEFINITIONS = 1
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
    #: Definition of each column of the ID. None in a certificate of format 1, which has only names.
    id_definitions: tuple[Definition, ...] | None = None
    #: Definition of the timestamp, or None if `id_definitions` is None.
    timestamp_definition: Definition | None = None
    #: Random bytes from which, with the query ID, all hash keys derive. No screen, log or error
    #: shows it. Empty in formats 1 and 2.
    secret: bytes = field(default=b"", repr=False)

    def to_bytes(self) -> bytes:
        """Return canonical JSON: the same bytes from every creator."""
        fields, version = asdict(self), CERTIFICATE_FORMAT
        fields["secret"] = self.secret.hex()
        if not self.secret:
            version = _WITHOUT_SECRET
            del fields["secret"]
        if self.id_definitions is None:
            version = _WITHOUT_DEFINITIONS
            for name in _DEFINITIONS:
                del fields[name]
        # Write text, because some readers round JSON numbers above 2**53.
        fields["hash_key_id"] = f"{self.hash_key_id:016x}"
        return to_document(fields, version=version)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Certificate:
        """Return the certificate, or raise CatalogError, which calls the bytes ``where``."""
        try:
            version, fields = from_document(
                data,
                version=CERTIFICATE_FORMAT,
                before={_WITHOUT_SECRET: checksum, _WITHOUT_DEFINITIONS: checksum},
            )
            return cls._from_fields(version, fields)
        except OtherVersion as exc:
            raise OtherRelease.at(f"the birth certificate {where}", exc) from exc
        except ValueError as exc:
            raise CatalogError(
                f"The birth certificate {where} cannot be used: {exc}. It was damaged, or another "
                "program wrote it. Restore it from a backup.",
                remedy="damaged-certificate",
            ) from exc

    @classmethod
    def _from_fields(cls, version: int, fields: dict[str, Any]) -> Certificate:
        absent = {"secret"} if version < CERTIFICATE_FORMAT else set()
        absent |= _DEFINITIONS if version == _WITHOUT_DEFINITIONS else set()
        parsers = {name: parse for name, parse in _PARSERS.items() if name not in absent}
        read = cls(**record(fields, parsers))
        if len(read.secret) != (0 if "secret" in absent else SECRET_BYTES):
            raise ValueError(f"its secret has {len(read.secret)} bytes")
        if read.id_definitions is not None and len(read.id_definitions) != len(read.id_columns):
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
_DEFINITIONS = {"id_definitions", "timestamp_definition"}


def load_certificate(root: Root, query_id: str) -> Certificate | None:
    """Return a query's certificate, or None. Raises CatalogError if it is damaged."""
    try:
        return read_certificate(root, certificate_path(query_id))
    except ObjectMissing:
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
