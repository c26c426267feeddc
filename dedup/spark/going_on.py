"""Whether a query can go on from its checkpoint, found out on the driver before it starts."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from dedup.catalog.certificate import load_certificate
from dedup.catalog.fit import check_fit
from dedup.catalog.layout import certificate_path
from dedup.cli.checkpoint_log import read_checkpoint
from dedup.core.findings import Finding, Level
from dedup.spark.build import Operator, plan_of
from dedup.spark.task import missing_catalog, of_plan

_RULE = "checkpoint"


def check_going_on(df: DataFrame, operator: Operator, checkpoint: str) -> Finding:
    """Say from where the query goes on, after the checks that its tasks would make.

    Parameters
    ----------
    df : DataFrame
        The stream that the operator is to be applied to.
    operator : Operator
    checkpoint : str
        What the query's option ``checkpointLocation`` will name.

    Raises
    ------
    ConfigError
        If the catalog was made with another ID, timestamp or number of shards, or the checkpoint
        is of another kind of query.
    CatalogError
        If the checkpoint has a memory and the catalog is not there, or is damaged.
    """
    root = operator.options.root
    log = read_checkpoint(checkpoint, missing_ok=True)
    if log is None or root is None:
        return Finding(
            rule=_RULE,
            level=Level.FINE,
            evidence=f"{checkpoint} holds no query yet: this is a first start, with an empty "
            "memory.",
        )
    plan = plan_of(df, operator.options)
    found = load_certificate(root, log.query_id)
    if found is None:
        if log.committed:
            raise missing_catalog(root, log.query_id)
        evidence = f"Query {log.query_id} has not finished its first micro-batch."
        return Finding(rule=_RULE, level=Level.FINE, evidence=evidence)
    wanted = replace(found, **of_plan(plan), shards=plan.shards or found.shards)
    where = root.url(certificate_path(log.query_id))
    check_fit(found, wanted, where=where, accepted=plan.accepted)
    return Finding(
        rule=_RULE,
        level=Level.FINE,
        evidence=f"Query {log.query_id} goes on after micro-batch {log.batch_id}; its catalog was "
        "made with the same ID, timestamp and shards.",
    )
