"""Counting files of a shard that its manifest does not name."""

from __future__ import annotations

from dedup.catalog.graves import read_grave
from dedup.catalog.inspect import list_catalog
from dedup.catalog.layout import shard_path
from dedup.catalog.root import Root
from dedup.core.manifest import Manifest


def count_stray(root: Root, query_id: str, shard: int, manifest: Manifest) -> tuple[int, int]:
    """Numbers of orphans and of foreign files in a shard's folder.

    An orphan is a file of a segment that the manifest does not name: what an attempt left behind
    that did not win. Nothing is deleted here.
    """
    known = manifest.names()
    for grave in manifest.graves:
        known.update(read_grave(root, query_id, shard, grave.name))
    orphans = foreign = 0
    for file in list_catalog(root, shard_path(query_id, shard, "").rstrip("/")):
        if file.says.segment is not None:
            orphans += file.says.kind != "tombstone" and file.says.segment not in known
        else:
            foreign += file.says.kind == "foreign"
    return orphans, foreign
