"""Check that a query's settings match the state and catalog that it continues with.

State and catalog are only valid under the settings that they were created with. With another ID,
the query would drop unique records and emit duplicates. Changes that cannot affect the bytes of an
ID are allowed: another alias, another way to name the same column, a wider decimal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from dedup.catalog.certificate import Certificate, load_certificate, read_certificate
from dedup.catalog.definition import Definition, change_token, encoded_kind
from dedup.catalog.layout import certificate_path
from dedup.errors import CatalogError, ConfigError, faults
from dedup.storage.root import Root

_START_OVER = (
    "Otherwise start over with a new checkpoint and a new catalog folder, which forgets all IDs"
)


def create_or_check(root: Root, wanted: Certificate, accepted: Collection[str] = ()) -> Certificate:
    """Return the certificate at the root, or write ``wanted`` there first if the root has none.

    The certificate at the root may have an earlier ``birth_batch`` than ``wanted``, or other
    definitions that make the same bytes. ``accepted`` has the tokens of the changes that the user
    accepts, as the rejecting error showed them. Any number of tasks may call this at the same time,
    because each of them reads the certificate back and compares it.

    Raises ConfigError, which names both values, if the catalog was created with other settings.
    Raises CatalogError if the certificate is damaged or has another secret, or the root cannot be
    read or written.
    """
    name = certificate_path(wanted.query_id)
    certificate = load_certificate(root, wanted.query_id)
    if certificate is None:
        faults.point("certificate.put.before")
        root.create_bytes(name, wanted.to_bytes())
        faults.point("certificate.put.after")
        certificate = read_certificate(root, name)
    if certificate.secret != wanted.secret:
        raise began_twice(root)
    check_fit(certificate, wanted, where=root.url(name), accepted=accepted)
    return certificate


def began_twice(root: Root) -> CatalogError:
    return CatalogError(
        f"Another start of this query created its catalog at {root.url()} during the first "
        "micro-batch of this one. This job judged no records. Let only one process use the "
        "checkpoint, then start the query again."
    )


def check_fit(
    stored: Certificate, wanted: Certificate, *, where: str, accepted: Collection[str] = ()
) -> None:
    """Raise ConfigError if the query's settings `wanted` do not match its state and catalog.

    State and catalog were created with the settings `stored`, the certificate at `where`. The error
    names both values of each different setting, and what to do.
    """
    old_time, new_time = ([one.timestamp_definition] for one in (stored, wanted))
    changes: tuple[tuple[str, Sequence[Definition], Sequence[Definition]], ...] = (
        ("ID", stored.id_definitions, wanted.id_definitions),
        ("timestamp", old_time, new_time),
    )
    tokens = {change[0]: token for change in changes if (token := _token(*change)) is not None}
    texts = [
        *(text for change in changes for text in _change(*change, accepted, tokens)),
        *_other_changes(stored, wanted),
    ]
    if texts:
        raise ConfigError(
            f"The query was started with other settings than its memory in {where} was made with: "
            f"{' '.join(texts)} {_START_OVER}",
            remedy="changed-settings",
        )


def _is_same(before: Sequence[Definition], after: Sequence[Definition]) -> bool:
    """Return whether both definitions make the same bytes."""
    return [one.identity for one in before] == [one.identity for one in after]


def _token(what: str, before: Sequence[Definition], after: Sequence[Definition]) -> str | None:
    """Return the token of a change, or None if the user has nothing to accept, or must not."""
    old, new = ([encoded_kind(one.kind) for one in side] for side in (before, after))
    if _is_same(before, after) or old != new or "" in old:
        return None
    return change_token(what, before, after)


def _change(
    what: str,
    before: Sequence[Definition],
    after: Sequence[Definition],
    accepted: Collection[str],
    tokens: Mapping[str, str],
) -> Iterator[str]:
    """Yield what changed, and how to undo it, or accept it with the tokens of all changes."""
    if _is_same(before, after):
        return
    change = f"The {what} is {_listed(after, before)} now and was {_listed(before, after)}."
    if what not in tokens:
        # If the expressions are equal, the type must have changed, which always changes the bytes.
        same_names = [one.expression for one in before] == [one.expression for one in after]
        yield f"{change} Use the earlier {what}{' or cast the column back' if same_names else ''}."
    elif tokens[what] not in accepted:
        words = tokens[what] if len(tokens) == 1 else list(tokens.values())
        yield (
            f"{change} {_way_back(before, after)} If you know that every record keeps its {what}, "
            f"set accept={words!r}."
        )


def _other_changes(stored: Certificate, wanted: Certificate) -> Iterator[str]:
    if stored.stable_timestamps != wanted.stable_timestamps:
        yield (
            f"stable_timestamps is {wanted.stable_timestamps} now and was "
            f"{stored.stable_timestamps}; set it back."
        )
    if stored.shards != wanted.shards:
        yield (
            f"The query has {wanted.shards} shards now and had {stored.shards}; set "
            f"shards={stored.shards}, or leave the option out."
        )
    elif (stored.slot_keys, stored.encoding, stored.hash_key_id) != (
        wanted.slot_keys, wanted.encoding, wanted.hash_key_id,
    ):  # fmt: skip
        yield (
            "Another release of rolling-dedup created the memory, and encodes IDs or spreads "
            "shards differently; install that release."
        )


def _listed(definitions: Sequence[Definition], others: Sequence[Definition]) -> str:
    if len(definitions) != len(others):
        others = definitions
    texts = [one.text_beside(other) for one, other in zip(definitions, others, strict=True)]
    return " and ".join(texts)


def _way_back(before: Sequence[Definition], after: Sequence[Definition]) -> str:
    """Return advice on how to restore the earlier value."""
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
