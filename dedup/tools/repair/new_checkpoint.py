"""A new checkpoint for a catalog, from which no query starts before all is written."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence

from dedup.catalog.backup import write_adopted, write_backup
from dedup.catalog.certificate import Certificate
from dedup.catalog.layout import catalog_files, certificate_path, successor_path
from dedup.core.state import ShardState
from dedup.errors import ConfigError
from dedup.storage.root import Root


def check_place(checkpoint: str | os.PathLike[str]) -> None:
    """Raise ConfigError if Spark would take a path for another folder."""
    given = os.fspath(checkpoint)
    if given.startswith("~") or (given.startswith("file:") and re.search("[%?#]", given)):
        raise ConfigError(
            f"Spark takes the checkpoint {given} for another folder. Give its absolute path."
        )


def name_query(checkpoint: Root, query_id: str, *, is_new: bool = False) -> None:
    """Let the first start with a checkpoint continue a query.

    With ``is_new``, does nothing if the checkpoint has a query. The caller has to look.
    """
    write = checkpoint.create_bytes if is_new else checkpoint.put_bytes
    write("metadata", json.dumps({"id": query_id}).encode())


def clear(root: Root, checkpoint: Root, query_id: str) -> None:
    """Delete what an earlier call, and starts that were refused, have left.

    The document that closes the query's folder stays.
    """
    for folder in checkpoint.folders():
        checkpoint.delete_folder(folder)
    document = successor_path(query_id)
    root.delete(file.name for file in catalog_files(root, query_id) if file.name != document)


def write_first(root: Root, certificate: Certificate, states: Sequence[ShardState]) -> None:
    """Write the state that each shard starts with, and then the certificate."""
    for shard, state in enumerate(states):
        write_adopted(root, certificate.query_id, shard, state)
        write_backup(root, certificate.query_id, shard, state)
    root.put_bytes(certificate_path(certificate.query_id), certificate.to_bytes())


def give_up(root: Root, checkpoint: Root, query_id: str, *, closed: bool = False) -> None:
    """Delete what was written. With ``closed``, the query's ID stays, and so does the document."""
    clear(root, checkpoint, query_id)
    if not closed:
        checkpoint.delete(["metadata"])
        root.delete_folder(query_id)
