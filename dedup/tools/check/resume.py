"""Whether a query can go on from its checkpoint, found out on the driver before it starts."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from dedup.catalog.certificate import load_certificate
from dedup.catalog.compatibility import check_fit
from dedup.catalog.layout import certificate_path
from dedup.catalog.root import Root
from dedup.catalog.similar_queries import similar_queries, similar_query_warning
from dedup.catalog.timeouts import reach
from dedup.spark.driver.build import Operator, a_stream_needs_a_catalog, plan_of
from dedup.spark.driver.checkpoint_log import read_checkpoint
from dedup.spark.executor.task import missing_catalog, of_plan
from dedup.spark.plan import Plan
from dedup.tools.check.findings import Finding, Level
from dedup.tools.repair.state_reader import has_state

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
    if root is None:
        raise a_stream_needs_a_catalog()
    plan = plan_of(df, operator.options)
    log = read_checkpoint(checkpoint, missing_ok=True)
    found = None if log is None else reach(root, lambda: load_certificate(root, log.query_id))
    if log is None or found is None:
        # The first micro-batch with records makes state and catalog; those before it make neither.
        if log is not None and log.committed and has_state(df.sparkSession, checkpoint):
            raise missing_catalog(root, log.query_id)
        return _first_start(root, plan, checkpoint)
    wanted = replace(found, **of_plan(plan), shards=plan.shards or found.shards)
    where = root.url(certificate_path(log.query_id))
    check_fit(found, wanted, where=where, accepted=plan.accepted)
    return Finding(
        rule=_RULE,
        level=Level.FINE,
        evidence=f"Query {log.query_id} goes on after micro-batch {log.batch_id}; its catalog was "
        "made with the same ID, timestamp and shards.",
    )


def _first_start(root: Root, plan: Plan, checkpoint: str) -> Finding:
    evidence = f"{checkpoint} has no memory yet: this is a first start, and knows no IDs."
    id_columns = of_plan(plan)["id_columns"]
    others = reach(root, lambda: similar_queries(root, id_columns))
    if not others:
        return Finding(rule=_RULE, level=Level.FINE, evidence=evidence)
    return Finding(
        rule=_RULE,
        level=Level.UNKNOWN,
        evidence=f"{evidence} {similar_query_warning(root, id_columns, others)}",
    )
