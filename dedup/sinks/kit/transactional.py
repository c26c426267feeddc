"""The class that users extend for a database with transactions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

T = TypeVar("T")


class TransactionalSink(ABC, Generic[T]):
    """A sink of your own whose transactions hold rows and markers. `custom_sink` makes it run.

    Implement six methods for your database. The kit calls them such that each micro-batch is
    published once, whatever is killed, frozen or repeated. ``T`` is the type of your transactions,
    such as a connection. Spark sends the object to its tasks, so the object must pickle: keep
    addresses in it, and open connections in `begin`.

    A *marker* is a text of at most 2,000 ASCII characters that your database keeps under a key.
    The kit reads and writes markers in the same transaction as the rows. A table with two columns
    will do, the key of at most 200 ASCII characters as its primary key.

    Attributes
    ----------
    parallel : bool
        False: the driver writes each micro-batch in one transaction, and readers see it at once.
        True: each Spark task writes its own rows in its own transaction. Then transactions run at
        the same time, so `read_marker` must lock one key and not the whole database.

    Notes
    -----
    Every method may raise any exception. The kit rolls the transaction back, and the task or the
    query fails. After an exception in `commit` the kit does not know whether the transaction is
    committed, and reads the marker to find out.

    The methods correspond to those of Flink's ``TwoPhaseCommitSinkFunction``, with one difference:
    nothing is left prepared between two calls, because the marker tells what was committed.
    """

    parallel: bool = False

    def check(self, schema: StructType) -> None:
        """Raise an exception if the sink cannot store rows of a schema.

        Called on the driver before the first micro-batch of each start. Also create the table of
        markers here, unless it exists.
        """

    @abstractmethod
    def begin(self) -> T:
        """Open a transaction and return it."""

    @abstractmethod
    def read_marker(self, transaction: T, key: str) -> str | None:
        """Return the marker of a key, or None, and lock the key until the transaction ends.

        Another transaction that reads the same key must wait, or fail, also if there is no marker
        yet. ``SELECT ... FOR UPDATE`` locks no missing row: insert an empty one first.
        """

    @abstractmethod
    def write_rows(self, transaction: T, rows: pa.RecordBatch) -> None:
        """Write rows. Readers must not see them before `commit`."""

    @abstractmethod
    def write_marker(self, transaction: T, key: str, marker: str) -> None:
        """Store the marker of a key, and replace the earlier one."""

    @abstractmethod
    def commit(self, transaction: T) -> None:
        """Make rows and marker visible and durable, both or none, and close the transaction."""

    @abstractmethod
    def rollback(self, transaction: T) -> None:
        """Undo and close the transaction. Called also after an error, and after a failed commit."""
