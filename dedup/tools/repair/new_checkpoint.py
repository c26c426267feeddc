"""A new checkpoint for a catalog. A document closes both until all is written."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dedup.catalog.backup import write_adopted, write_backup
from dedup.catalog.certificate import Certificate
from dedup.catalog.layout import catalog_files, certificate_path, successor_path
from dedup.catalog.successor import Successor, write_successor
from dedup.core.state import ShardState
from dedup.storage.root import Root


def name_query(checkpoint: Root, query_id: str) -> None:
    """Let the first start with a checkpoint continue a query."""
    checkpoint.put_bytes("metadata", json.dumps({"id": query_id}).encode())


def begin(root: Root, checkpoint: Root, closing: Successor) -> None:
    """Close a catalog's folder and its new checkpoint, and empty both.

    An earlier call, and starts that were refused, may have left something there. From now on a
    start with the checkpoint finds the query, and the document that closes it.
    """
    _clear(root, checkpoint, closing.query_id)
    write_successor(root, closing)
    name_query(checkpoint, closing.query_id)


def write_first(root: Root, certificate: Certificate, states: Sequence[ShardState]) -> None:
    """Write the state that each shard starts with, and the certificate."""
    for shard, state in enumerate(states):
        write_adopted(root, certificate.query_id, shard, state)
        write_backup(root, certificate.query_id, shard, state)
    root.put_bytes(certificate_path(certificate.query_id), certificate.to_bytes())


def open_both(root: Root, query_id: str) -> None:
    root.delete([successor_path(query_id)])


def give_up(root: Root, checkpoint: Root, query_id: str, *, closed: bool = False) -> None:
    """Delete what was written. With ``closed``, the document and the query's ID stay."""
    _clear(root, checkpoint, query_id)
    if not closed:
        checkpoint.delete(["metadata"])
        root.delete_folder(query_id)


def _clear(root: Root, checkpoint: Root, query_id: str) -> None:
    for folder in checkpoint.folders():
        checkpoint.delete_folder(folder)
    document = successor_path(query_id)
    root.delete(file.name for file in catalog_files(root, query_id) if file.name != document)
