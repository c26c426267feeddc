"""The micro-batches that a function has begun, recorded in the checkpoint.

What the function knows of a micro-batch is in another place, such as its folder `at`. If that place
knows less than the record, somebody has removed it. Spark reads and writes the record, because
pyarrow may not reach the checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dedup.errors import SinkError
from dedup.storage.uri import without_credentials

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Folder of the records in the checkpoint. A record is an empty file <name>/<micro-batch>.
FOLDER = "dedup-begun"


class Begun:
    """The record of one function in the running query of `rows`, in a classic session."""

    def __init__(self, rows: DataFrame, query_id: str, name: str) -> None:
        session: Any = rows._jdf.sparkSession()
        jvm: Any = rows.sparkSession.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        # The session of a micro-batch is a clone, whose own list of queries is empty.
        queries = session.sharedState().activeStreamingQueries()
        query = queries.get(jvm.java.util.UUID.fromString(query_id))
        self._folder = self._path(query.resolvedCheckpointRoot(), f"{FOLDER}/{name}")
        self._fs = self._folder.getFileSystem(session.sessionState().newHadoopConf())

    def _numbers(self) -> list[int]:
        files = self._fs.listStatus(self._folder) if self._fs.exists(self._folder) else ()
        names = (each.getPath().getName() for each in files)
        return [int(name) for name in names if name.isdigit()]  # a copy may have files like .7.crc

    def is_elsewhere(self, batch_id: int) -> bool:
        """Return whether only a function of the same kind with another path has begun it."""
        kind = self._folder.getName().partition("-")[0]
        others = self._path(self._folder.getParent(), f"{kind}-*/{batch_id}")
        return not self._numbers() and bool(self._fs.globStatus(others))

    def note(self, batch_id: int) -> None:
        """Record a micro-batch, after the other place knows it and before its rows have effects."""
        self._fs.createNewFile(self._path(self._folder, str(batch_id)))
        for earlier in (number for number in self._numbers() if number < batch_id):
            self._fs.delete(self._path(self._folder, str(earlier)), False)

    def refuse_lost(self, function: object, other: int) -> None:
        """Raise SinkError if `other`, the newest micro-batch of the other place, is too old."""
        if other < (newest := max(self._numbers(), default=-1)):
            raise SinkError(
                f"{function} has begun micro-batch {newest}, and what it knew of it is gone: "
                f"{f'micro-batch {other} is the newest' if other >= 0 else 'no micro-batch'} is "
                "there. A micro-batch that runs again could be done twice, so nothing was done. "
                "Bring the files back. If no micro-batch was in progress, or doing one twice does "
                f"no harm, delete the folder {without_credentials(self._folder.toString())}, and "
                "start the query again.",
                remedy="sink-markers",
            )
