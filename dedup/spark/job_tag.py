"""The query and micro-batch of a job, as a tag of the job.

In a classic session a function for ``foreachBatch`` runs in the query's thread, whose properties
name query and micro-batch. In Spark Connect it runs in another process, whose jobs lack these
properties. So the functions of this package tag their jobs there. Spark shows the tags to tasks.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TAG = re.compile(r"dedup-job/([^,/]+)/(\d+)/([0-9a-f-]{36})(?=,|$)")
#: Spark Connect starts a process for the function at each start of a query.
_START_ID = str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class JobTag:
    """The query and micro-batch of a job. `start_id` differs between starts of the query."""

    query_id: str
    batch_id: int
    start_id: str = _START_ID

    def __str__(self) -> str:
        return f"dedup-job/{self.query_id}/{self.batch_id}/{self.start_id}"

    @contextmanager
    def set(self, rows: DataFrame) -> Iterator[None]:
        """Tag the jobs that this thread starts on `rows`."""
        session, tag = rows.sparkSession, str(self)
        if tag in session.getTags():  # a function that calls this one has set it
            yield
            return
        session.addTag(tag)
        try:
            yield
        finally:
            with suppress(KeyError):  # a function may have cleared all tags
                session.removeTag(tag)


def job_tags(tags: str | None) -> set[JobTag]:
    """Return the tags of this package among the tags of a job."""
    return {JobTag(query, int(batch), start) for query, batch, start in _TAG.findall(tags or "")}


def is_connect(df: Any) -> bool:
    """Return whether a DataFrame is of Spark Connect."""
    return type(df).__module__.startswith("pyspark.sql.connect")
