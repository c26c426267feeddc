"""`dedup catalog vacuum` and `adopt`: cleaning up, and going on without the old checkpoint."""

from __future__ import annotations

import uuid
from dataclasses import asdict
from typing import Any

from dedup.catalog.gc.vacuum import carry_out, plan_vacuum
from dedup.catalog.repair.adopt import adopt as adopt_catalog
from dedup.catalog.root import Root
from dedup.cli.catalog.work import only_query, open_root, snapshot
from dedup.core.duration import duration_ms
from dedup.machine import wall_clock_ms


def vacuum(
    where: str, checkpoint: str, *, older_than: str, sole: bool, dry_run: bool, spark: Any = None
) -> dict[str, Any]:
    """Delete what the checkpoint's manifests do not name; return what went.

    Raises
    ------
    ConfigError
        If there is no catalog or checkpoint, or the query's history has branched.
    """
    older_than_ms = duration_ms(older_than, option="--older-than")
    root = open_root(where)
    known = snapshot(root, checkpoint, spark)
    plan = plan_vacuum(
        root,
        known.query_id,
        known.states,
        now_ms=wall_clock_ms() if dry_run else _storage_now_ms(root),
        older_than_ms=older_than_ms,
        sole=sole,
    )
    if not dry_run:
        carry_out(root, known.query_id, plan)
    return {
        "root": root.url(),
        "query_id": known.query_id,
        "dry_run": dry_run,
        "files": [file.name for file in plan.files],
        "bytes": plan.size_bytes,
        "young": plan.young,
        "foreign": [file.name for file in plan.foreign],
        "runs": [run.run_id for run in plan.branches],
    }


def _storage_now_ms(root: Root) -> int:
    """The time by the storage's clock, which dates its objects; this machine's may be off."""
    probe = f"probe-{uuid.uuid4()}"
    root.put_bytes(probe, b"")
    try:
        storage_ms = root.modified_ms(probe)
    finally:
        root.delete([probe])
    return wall_clock_ms() if storage_ms is None else min(wall_clock_ms(), storage_ms)


def adopt(
    where: str, checkpoint: str, query_id: str | None, *, sole: bool = False
) -> dict[str, Any]:
    """Make a new checkpoint that goes on with a catalog; return what it begins with.

    Raises
    ------
    ConfigError
        If there is no catalog, or it does not say of which query, or the folder is in use, or the
        query's history has branched.
    """
    root = open_root(where)
    new = Root(checkpoint)
    done = adopt_catalog(root, query_id or only_query(root), new, sole=sole)
    return {"root": root.url(), "checkpoint": new.url(), **asdict(done)}
