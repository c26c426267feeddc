"""The shards and hash keys of a query, from its birth certificate, which tasks check.

The birth certificate is an object at the catalog root that holds what a query fixed at its first
start: ID, timestamp, number of shards, hash keys.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dedup.catalog.certificate import Certificate, has_learned, load_certificate
from dedup.catalog.compatibility import create_or_check
from dedup.catalog.gc.runs import list_runs
from dedup.catalog.layout import catalog_files
from dedup.catalog.similar_queries import similar_queries, similar_query_warning
from dedup.catalog.successor import refuse_closed
from dedup.core.filter import hash_key_id
from dedup.core.sharding import derive_keys, filter_key_id, payload_key, slot_keys
from dedup.errors import CatalogError, StateError
from dedup.spark.executor.task import Task
from dedup.spark.id_encoding import ENCODING
from dedup.spark.mount_probe import check_start
from dedup.spark.plan import Plan
from dedup.storage.root import Root

logger = logging.getLogger("dedup")

#: Certificates that this process has checked, by root, query, run and fixed options.
_checked: dict[tuple[object, ...], Certificate] = {}


@dataclass(frozen=True, slots=True)
class Layout:
    """The query's shards and hash keys, from the birth certificate. All three passes need them."""

    #: Numbers by which Spark groups the rows of each shard. They spread shards evenly.
    slot_keys: tuple[int, ...]
    #: Three independent 16-byte hash keys.
    shard_key: bytes = field(repr=False)
    filter_key: bytes = field(repr=False)
    payload_key: bytes = field(repr=False)
    #: The query's secret, which is empty if there is no certificate.
    secret: bytes = field(default=b"", repr=False)

    @property
    def key_id(self) -> int:
        return hash_key_id(self.filter_key)

    @staticmethod
    def of(query_id: str, slot_keys: tuple[int, ...], secret: bytes = b"") -> Layout:
        """Return a layout, with hash keys that are derived from the query's ID and secret."""
        keys = *derive_keys(query_id, secret), payload_key(query_id, secret)
        return Layout(slot_keys, *keys, secret)


def layout(plan: Plan, task: Task, *, has_state: bool | None = None) -> Layout:
    """Check the birth certificate, and return the layout of the query.

    `has_state` says whether Spark has a state for this shard. Only the group function gives
    `has_state`, so only the group function creates a certificate. Raises ConfigError if the
    certificate is for another ID, timestamp or number of shards.
    """
    if plan.root is None:
        shards = plan.shards or task.partitions
        # A stream without a catalog cannot store a secret.
        secret = b"" if plan.streaming else plan.secret
        # The number of partitions may change, and no certificate keeps the keys.
        spread = shards if plan.streaming and plan.numbering is not None else task.partitions
        return Layout.of(task.query_id, slot_keys(shards, spread), secret)
    certificate = _certificate(plan, task, has_state)
    born = task.epoch <= certificate.birth_batch
    if has_state is False and not born and not _just_adopted(plan.root, task):
        raise StateError(
            f"Micro-batch {task.epoch} found no Spark state although catalog "
            f"{plan.root.url()} was born in micro-batch {certificate.birth_batch}: the state in "
            "the checkpoint is lost, or the catalog was rebuilt for another checkpoint. Use that "
            "one, restore the checkpoint with its state, or adopt the catalog with a new one.",
            remedy="damaged-state",
        )
    return Layout.of(task.query_id, certificate.slot_keys, certificate.secret)


def _just_adopted(root: Root, task: Task) -> bool:
    """Return whether the query adopted a catalog and has committed no rows since."""
    adopted = any(file.parsed.kind == "adopted" for file in catalog_files(root, task.query_id))
    return adopted and all(
        run.began_epoch >= task.epoch and run.through_epoch is None
        for run in list_runs(root, task.query_id)
    )


def warn_of_others(root: Root, query_id: str) -> int:
    """Warn of other queries that use the same ID columns, and return the number of such queries.

    The driver cannot warn, because it does not know the checkpoint before the query starts. With a
    local master the user sees the worker's log on the screen, on a cluster in the executor's log.
    The number reaches the driver in the metrics.
    """
    with suppress(CatalogError):  # the query continues without the warning
        own = load_certificate(root, query_id)
        others = [] if own is None else similar_queries(root, own.id_columns, query_id)
        if own is not None and others:
            logger.warning("%s", similar_query_warning(root, own.id_columns, others))
        return len(others)
    return 0


def _certificate(plan: Plan, task: Task, has_state: bool | None) -> Certificate:
    assert plan.root is not None
    cache_key = (
        plan.root.url(), task.query_id, task.run_id,
        plan.id_definitions, plan.time.definition, plan.policy.stable_timestamps, plan.shards,
        plan.accepted,
    )  # fmt: skip
    checked = _checked.get(cache_key)
    if checked is not None:
        return checked
    if plan.marked:
        # Check this before the machine writes to a folder that no other machine sees.
        check_start(plan.root, plan.start_id)
    refuse_closed(plan.root, task.query_id)
    known = load_certificate(plan.root, task.query_id)
    if known is None and (has_state or has_learned(task.query_id)):
        raise missing_catalog(plan.root, task.query_id)
    shards = plan.shards or (known.shards if known else task.partitions)
    secret = known.secret if known else plan.secret
    # Then shards also spread evenly if the state later gets twice or four times as many partitions.
    spread = 4 * task.partitions
    same_spread = known is not None and known.shards == shards
    wanted = Certificate(
        query_id=task.query_id,
        shards=shards,
        slot_keys=known.slot_keys if known and same_spread else slot_keys(shards, spread),
        hash_key_id=filter_key_id(task.query_id, secret),
        birth_batch=task.epoch,
        secret=secret,
        **of_plan(plan),
    )
    if has_state is None and known is None:
        # Pack only reads the certificate. The group function knows whether there is state, and
        # creates a missing certificate.
        return wanted
    certificate = create_or_check(plan.root, wanted, plan.accepted)
    _checked.clear()
    _checked[cache_key] = certificate
    return certificate


def of_plan(plan: Plan) -> dict[str, Any]:
    """Return the fields of the certificate that follow from the plan."""
    return {
        "id_columns": tuple((name, kind) for _, name, kind in plan.id_columns),
        "id_definitions": plan.id_definitions,
        "encoding": ENCODING,
        "timestamp_source": plan.time.text,
        "timestamp_definition": plan.time.definition,
        "stable_timestamps": plan.policy.stable_timestamps,
    }


def missing_catalog(root: Root, query_id: str) -> CatalogError:
    """Return the error for a checkpoint whose catalog is not at the root."""
    if has_learned(query_id):
        return CatalogError(
            f"Query {query_id} begins with the IDs of history, and {root.url()} does not hold "
            "them. Point `catalog` to the catalog of the call of dedup.tools.bootstrap. If the "
            "call was cut off, repeat it. To start without history, use another checkpoint.",
            remedy="missing-catalog",
        )
    return CatalogError(
        f"The catalog of this query is missing: {root.url()} has no birth certificate for query "
        f"{query_id}, but the checkpoint refers to one. Point `catalog` to its place, or restore "
        "it together with the checkpoint.",
        remedy="missing-catalog",
    )
