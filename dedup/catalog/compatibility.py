"""Whether a query fits the memory that it goes on with.

State and catalog only make sense under the settings that they were born with: under another ID
unique records would be taken for duplicates, and duplicates for unique ones. What cannot change
the bytes of an ID is let through: another alias, another way to name the same column, a wider
decimal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dedup.catalog.certificate import Certificate, read_certificate
from dedup.catalog.definition import Definition, change_token, encoded_kind
from dedup.catalog.layout import certificate_path
from dedup.catalog.root import Root
from dedup.errors import CatalogError, ConfigError, faults

_ANEW = (
    "Otherwise start anew with another checkpoint and another catalog folder, which forgets all IDs"
)


@dataclass(frozen=True, slots=True)
class Accepted:
    """Changes for which the user vouches, each by the word that the refusal names.

    Parameters
    ----------
    id, timestamp : str or None
    """

    id: str | None = None
    timestamp: str | None = None


def create_or_check(
    root: Root, wanted: Certificate, accepted: Accepted | None = None
) -> Certificate:
    """Write the certificate if there is none; return the one that counts.

    Parameters
    ----------
    root : Root
        The catalog.
    wanted : Certificate
        What this task believes.
    accepted : Accepted, optional
        Changes for which the user has vouched.

    Returns
    -------
    Certificate
        The one at the root: ``wanted``, but perhaps with an earlier ``birth_batch``, or of other
        definitions that make the same bytes.

    Raises
    ------
    ConfigError
        When the catalog was made with other settings; the text names both values.
    CatalogError
        When the certificate is damaged or has another secret, or the root cannot be read or
        written.

    Notes
    -----
    Any number of tasks may race: the one at the root is read back and compared by all.
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
    """Return the error for two starts that begin one query, each with hash keys of its own."""
    return CatalogError(
        f"Another start of this query began its catalog at {root.url()} while this one was in its "
        "first micro-batch. Nothing of this job was judged. Let one process alone run the "
        "checkpoint, then start the query again."
    )


def check_fit(
    found: Certificate, wanted: Certificate, *, where: str, accepted: Accepted = Accepted()
) -> None:
    """Refuse a query whose settings its memory does not fit.

    Parameters
    ----------
    found : Certificate
        The one that the memory was born with.
    wanted : Certificate
        What the query's settings are now.
    where : str
        Where `found` is, for the error.
    accepted : Accepted

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
            f"the query was started with other settings than its memory in {where} was made with: "
            f"{' '.join(texts)} {_ANEW}",
            remedy="changed-settings",
        )


def _id_change(found: Certificate, wanted: Certificate, accepted: Accepted) -> Iterator[str]:
    before, after = _id_of(found, wanted)
    if _same(before, after):
        return
    change = f"The ID is {_listed(after, before)} now and was {_listed(before, after)}."
    if [encoded_kind(one.kind) for one in before] != [encoded_kind(one.kind) for one in after]:
        # A changed type changes the bytes, whatever anybody says.
        cast = (
            " For another type of the same column, cast it back."
            if _same_names(before, after)
            else ""
        )
        yield f"{change} Give the one of then.{cast}"
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
                f"{found.timestamp_source}. Give the one of then; a column that was renamed can "
                "be renamed back with withColumnRenamed before the operator."
            )
        return
    if _same([old], [new]):
        return
    change = f"The timestamp is {new.text_beside(old)} now and was {old.text_beside(new)}."
    if not (old.kind and old.kind == new.kind):
        yield f"{change} Give the one of then."
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
            "Another release of rolling-dedup encodes IDs or spreads shards in another way; "
            "install the release that wrote it."
        )


def _id_of(
    found: Certificate, wanted: Certificate
) -> tuple[Sequence[Definition], Sequence[Definition]]:
    """Return definitions of both, by name alone where one of them knows no more."""
    if found.id_definitions is not None and wanted.id_definitions is not None:
        return found.id_definitions, wanted.id_definitions
    before, after = (
        [Definition(expression=name, kind=kind) for name, kind in one.id_columns]
        for one in (found, wanted)
    )
    return before, after


def _same(before: Sequence[Definition], after: Sequence[Definition]) -> bool:
    return len(before) == len(after) and all(map(Definition.same_as, before, after))


def _same_names(before: Sequence[Definition], after: Sequence[Definition]) -> bool:
    return [one.expression for one in before] == [one.expression for one in after]


def _listed(definitions: Sequence[Definition], others: Sequence[Definition]) -> str:
    if len(definitions) != len(others):
        others = definitions
    texts = [one.text_beside(other) for one, other in zip(definitions, others, strict=True)]
    return " and ".join(texts)


def _way_back(before: Sequence[Definition], after: Sequence[Definition]) -> str:
    """Return how to go back; for columns that may just have another name, by renaming them."""
    renamed = [
        f".withColumnRenamed({new.expression!r}, {old.expression!r})"
        for old, new in zip(before, after, strict=True)
        if old.expression != new.expression and not (old.inputs or new.inputs)
    ]
    if not renamed:
        return "Give the one of then."
    return (
        "Give the one of then; if a column was only renamed, rename it back before the operator: "
        f"events{''.join(renamed)}."
    )
