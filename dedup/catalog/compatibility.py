"""Whether a query's settings match the memory that it continues with.

State and catalog are only valid under the settings that they were created with. With another ID,
unique records would be dropped as duplicates, and duplicates emitted. Changes that cannot affect
the bytes of an ID are allowed: another alias, another way to name the same column, a wider decimal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dedup.catalog.certificate import Certificate, read_certificate
from dedup.catalog.definition import Definition, change_token, encoded_kind
from dedup.catalog.layout import certificate_path
from dedup.catalog.root import Root
from dedup.errors import CatalogError, ConfigError, faults

_START_OVER = (
    "Otherwise start over with a new checkpoint and a new catalog folder, which forgets all IDs"
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """Changes that the user accepts, each by the token in the error that rejected it."""

    id: str | None = None
    timestamp: str | None = None


def create_or_check(
    root: Root, wanted: Certificate, accepted: Accepted | None = None
) -> Certificate:
    """Write the certificate if there is none; return the one that counts.

    Parameters
    ----------
    wanted
        The certificate of this task's settings.
    accepted
        Changes that the user accepts.

    Returns
    -------
    Certificate
        The one at the root: ``wanted``, except that it may have an earlier ``birth_batch``, or
        other definitions that make the same bytes.

    Raises
    ------
    ConfigError
        If the catalog was created with other settings; the text names both values.
    CatalogError
        If the certificate is damaged or has another secret, or the root cannot be read or written.

    Notes
    -----
    Any number of tasks may race: all of them read the certificate back and compare it.
    """
    name = certificate_path(wanted.query_id)
    if not root.exists(name):
        faults.point("certificate.put.before")
        root.create_bytes(name, wanted.to_bytes())
        faults.point("certificate.put.after")
    found = read_certificate(root, name)
    if found.secret != wanted.secret:
        raise began_twice(root)
    check_fit(found, wanted, where=root.url(name), accepted=accepted or Accepted())
    return found


def began_twice(root: Root) -> CatalogError:
    """Return the error for two starts that create one query, each with its own hash keys."""
    return CatalogError(
        f"Another start of this query created its catalog at {root.url()} during the first "
        "micro-batch of this one. This job judged no records. Let only one process use the "
        "checkpoint, then start the query again."
    )


def check_fit(
    found: Certificate, wanted: Certificate, *, where: str, accepted: Accepted = Accepted()
) -> None:
    """Raise ConfigError if the query's settings do not match its memory.

    Parameters
    ----------
    found
        The certificate that the memory was created with.
    wanted
        The certificate of the query's present settings.
    where
        Where `found` is, for the error.

    Raises
    ------
    ConfigError
        Naming both values of each setting, and what to do.
    """
    texts = [
        *_id_change(found, wanted, accepted),
        *_timestamp_change(found, wanted, accepted),
        *_other_changes(found, wanted),
    ]
    if texts:
        raise ConfigError(
            f"The query was started with other settings than its memory in {where} was made with: "
            f"{' '.join(texts)} {_START_OVER}",
            remedy="changed-settings",
        )


def _id_change(found: Certificate, wanted: Certificate, accepted: Accepted) -> Iterator[str]:
    before, after = _id_of(found, wanted)
    if _same(before, after):
        return
    change = f"The ID is {_listed(after, before)} now and was {_listed(before, after)}."
    if [encoded_kind(one.kind) for one in before] != [encoded_kind(one.kind) for one in after]:
        # A changed type always changes the bytes.
        same_names = [one.expression for one in before] == [one.expression for one in after]
        cast = " or cast the column back" if same_names else ""
        yield f"{change} Use the earlier ID{cast}."
        return
    token = change_token(before, after)
    if accepted.id == token:
        return
    yield (
        f"{change} {_way_back(before, after)} If you know that every record keeps its ID, set "
        f"accept_changed_id='{token}'."
    )


def _timestamp_change(found: Certificate, wanted: Certificate, accepted: Accepted) -> Iterator[str]:
    old, new = found.timestamp_definition, wanted.timestamp_definition
    if old is None or new is None:
        if found.timestamp_source != wanted.timestamp_source:
            yield (
                f"The timestamp is {wanted.timestamp_source} now and was "
                f"{found.timestamp_source}. Use the earlier timestamp. If a column was renamed, "
                "rename it back with withColumnRenamed before the operator."
            )
        return
    if _same([old], [new]):
        return
    change = f"The timestamp is {new.text_beside(old)} now and was {old.text_beside(new)}."
    if not (old.kind and old.kind == new.kind):
        yield f"{change} Use the earlier timestamp."
        return
    token = change_token([old], [new])
    if accepted.timestamp == token:
        return
    yield (
        f"{change} {_way_back([old], [new])} If you know that every record keeps its timestamp, "
        f"set accept_changed_timestamp='{token}'."
    )


def _other_changes(found: Certificate, wanted: Certificate) -> Iterator[str]:
    if found.stable_timestamps != wanted.stable_timestamps:
        yield (
            f"stable_timestamps is {wanted.stable_timestamps} now and was "
            f"{found.stable_timestamps}; set it back."
        )
    if found.shards != wanted.shards:
        yield (
            f"The query has {wanted.shards} shards now and had {found.shards}; set "
            f"shards={found.shards}, or leave the option out."
        )
    elif (found.slot_keys, found.encoding, found.hash_key_id) != (
        wanted.slot_keys, wanted.encoding, wanted.hash_key_id,
    ):  # fmt: skip
        yield (
            "Another release of rolling-dedup created the memory, and encodes IDs or spreads "
            "shards differently; install that release."
        )


def _id_of(
    found: Certificate, wanted: Certificate
) -> tuple[Sequence[Definition], Sequence[Definition]]:
    """Return definitions of both IDs, by names alone if one of the certificates has no more."""
    if found.id_definitions is not None and wanted.id_definitions is not None:
        return found.id_definitions, wanted.id_definitions
    before, after = (
        [Definition(expression=name, kind=kind) for name, kind in one.id_columns]
        for one in (found, wanted)
    )
    return before, after


def _same(before: Sequence[Definition], after: Sequence[Definition]) -> bool:
    return len(before) == len(after) and all(map(Definition.same_as, before, after))


def _listed(definitions: Sequence[Definition], others: Sequence[Definition]) -> str:
    if len(definitions) != len(others):
        others = definitions
    texts = [one.text_beside(other) for one, other in zip(definitions, others, strict=True)]
    return " and ".join(texts)


def _way_back(before: Sequence[Definition], after: Sequence[Definition]) -> str:
    """Return how to restore the earlier value; for plain columns, by renaming them."""
    renamed = [
        f".withColumnRenamed({new.expression!r}, {old.expression!r})"
        for old, new in zip(before, after, strict=True)
        if old.expression != new.expression and not (old.inputs or new.inputs)
    ]
    if not renamed:
        return "Use the earlier one."
    return (
        "Use the earlier one. If a column was only renamed, rename it back before the operator: "
        f"events{''.join(renamed)}."
    )
