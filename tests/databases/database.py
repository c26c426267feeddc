"""What tests need of a database: statements, options, users, sessions, the sink's harness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol, Self, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from dedup.sinks.batch import new_batch
from dedup.sinks.foreach_batch import SinkFunction
from dedup.sinks.kind import SinkKind
from dedup.sinks.kit.slots import TransactionalWork, forget_slots
from dedup.sinks.options import DatabaseOptions
from dedup.testing.sinks import QUERY, SinkHarness
from tests.support.proxy import Harm

T = TypeVar("T")
#: Spark's name of each type, by column.
Columns = Sequence[tuple[str, str]]
COLUMNS: Columns = [("n", "int"), ("text", "string")]
MODES: list[dict[str, str]] = [
    {}, {"mode": "atomic"}, {"mode": "upsert", "key": "n"}, {"mode": "atomic", "key": "n"},
]  # fmt: skip
#: What a proxy can do to a commit.
HARMS = (Harm.CUT_BEFORE, Harm.CUT_AFTER, Harm.HOLD)


class DatabaseServer(Protocol):
    """A running server on this machine."""

    port: int

    def start(self) -> None: ...
    def crash(self) -> None: ...
    def restart(self) -> None: ...


class Database(ABC):
    """A database of the test's own, as one user connects to it. It pickles.

    Unquoted names, `int`, `text` and double quotes mean the same in the statements of both kinds.
    """

    name: ClassVar[str]
    kind: ClassVar[SinkKind[Any]]
    #: For the checkpoints of queries.
    folder: Path
    #: The library of the client, and the module that the sink imports.
    library: ClassVar[ModuleType]
    #: A type of text that a key may have.
    key_text: ClassVar[str]

    @staticmethod
    @abstractmethod
    def ready(options: Any, columns: Columns) -> TransactionalWork:
        """Check the tables at the start of a query; return its work."""

    @classmethod
    @abstractmethod
    def create(cls, server: Any, name: str, folder: Path) -> Self:
        """Return a new database of a server."""

    @classmethod
    @abstractmethod
    def of(cls, options: Any) -> Self:
        """Return the database that a sink of these options writes to."""

    @staticmethod
    @abstractmethod
    def is_commit(frame: bytes) -> bool:
        """Return whether a client commits with these bytes."""

    @property
    @abstractmethod
    def address(self) -> dict[str, str]:
        """The options that name the server and the user."""

    @abstractmethod
    def function(self, table: str, checkpoint: str = "", **given: Any) -> SinkFunction:
        """Return what the user's function of the sink returns."""

    @staticmethod
    @abstractmethod
    def ddl(schema: StructType, table: str, key: str | Sequence[str] = ()) -> str:
        """Return the statement that creates a table for a stream."""

    @abstractmethod
    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; return the rows of the last one."""

    @abstractmethod
    def values(self, columns: Mapping[str, str]) -> list[tuple[Any, ...]]:
        """Return the rows of the table `t` in the order of `n`, as Arrow has values.

        `columns` are names as in SQL, with Spark's type of each.
        """

    @abstractmethod
    def has_table(self, name: str) -> bool:
        """Return whether there is a table that this user may see."""

    @abstractmethod
    def changed(self, **settings: Any) -> Self:
        """Return the same with other settings of the client's library, such as a `password`."""

    @abstractmethod
    def by_port(self, port: int) -> Self:
        """Return the same database behind a port of this machine, which may be a proxy's."""

    @abstractmethod
    def by_another_address(self) -> Self:
        """Return the same database at another address, of which this process knows nothing."""

    @abstractmethod
    def elsewhere(self, name: str) -> Self:
        """Return a new and empty database on the server, for the same user."""

    @abstractmethod
    def as_user(self, *grants: str) -> Self:
        """Return the database for a new user with these privileges."""

    @abstractmethod
    def with_password(self, password: str) -> Self:
        """Return the database for a new administrator, whom the server asks for this password."""

    @abstractmethod
    def sessions(self) -> set[int]:
        """Return the sessions of others in this database."""

    @abstractmethod
    def end(self, session: int) -> None:
        """End a session, as a proxy or an administrator does."""

    def own(self, *, postgres: T, mysql: T) -> T:
        """Return the value for this kind of database."""
        return {"postgres": postgres, "mysql": mysql}[self.name]

    @property
    def error(self) -> type[Exception]:
        """The error of a lost connection, or of a lock that others hold."""
        return self.library.OperationalError  # type: ignore[no-any-return]

    @property
    def checkpoint(self) -> str:
        """The checkpoint of a query, unless the test names another."""
        return str(self.folder / "checkpoint")

    def given(self, *, checkpoint: str = "checkpoint", **options: str) -> dict[str, str]:
        """Return options as a user gives them; their names have underscores for dots."""
        named = {name.replace("_", "."): value for name, value in options.items()}
        fixed = {"table": "t", "checkpointLocation": str(self.folder / checkpoint)}
        return self.address | fixed | {"timeout.seconds": "5"} | named

    def work(self, columns: Columns = COLUMNS, **options: str) -> TransactionalWork:
        """Start a query into the table `t`, unless the options name another; return its work."""
        return self.ready(self.kind.parse(self.given(**options)), columns)

    def write(self, *rows: pa.RecordBatch, columns: Columns = COLUMNS, **options: str) -> None:
        """Write rows twice: in a micro-batch that the driver publishes, and in a task's own."""
        work = self.work(columns, **options)
        for batch_id in range(2):
            batch = new_batch(QUERY, work.name, "run1", batch_id)
            work.complete([work.write(batch, 0, iter(rows))])

    def end_sessions(self) -> None:
        for session in self.sessions():
            self.end(session)


class Sink(SinkHarness):
    """A sink into a table ``numbers(n int, text text)``."""

    def __init__(self, db: Database, **options: str) -> None:
        self.db, self.format = db, db.kind.format_name
        if not db.has_table("numbers"):
            key = ", PRIMARY KEY (n)" if options.get("key") else ""
            db.run(f"CREATE TABLE numbers (n int, text text{key})")
        options = {"table": "numbers"} | options
        self.table, self.given = options["table"], db.given(**options)
        self.work: TransactionalWork = db.work(COLUMNS, **options)
        self.options: DatabaseOptions = self.work.options  # type: ignore[assignment]

    def rows(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return rows of the table."""
        return batch_of(numbers)

    def publish(self, batch_id: int, *rows: pa.RecordBatch, run_id: str = "run1") -> None:
        """Run a micro-batch of one task."""
        self.finish([self.send(run_id, batch_id, 0, iter(rows))])

    def numbers(self) -> Counter[int]:
        """How often each number is in the table."""
        return Counter(row[0] for row in self.db.run(f"SELECT n FROM {self.table}"))

    def forget(self) -> None:
        """Forget what this process owns, as if it had just started."""
        forget_slots()


def mode_name(options: Mapping[str, str]) -> str:
    return "-".join(options.values()) or "append"


def batch_of(numbers: Iterable[int | None], text: str | Sequence[str] = "t") -> pa.RecordBatch:
    """Rows of a table of numbers, with a text each or all the same."""
    numbers = list(numbers)
    texts = [text] * len(numbers) if isinstance(text, str) else list(text)
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int32()), "text": texts})


def cases(
    names: str, *, both: Sequence[Any] = (), postgres: Sequence[Any] = (), mysql: Sequence[Any] = ()
) -> pytest.MarkDecorator:
    """Parametrise a test of the fixture `db` with cases for both databases, and for one of them."""
    every = [(name, case) for name in ("postgres", "mysql") for case in both]
    every += [("postgres", case) for case in postgres] + [("mysql", case) for case in mysql]
    found = []
    for name, case in every:
        values, marks = getattr(case, "values", case), getattr(case, "marks", ())
        label = next((each for each in reversed(values) if isinstance(each, str)), "")
        found.append(pytest.param(name, *values, marks=marks, id=f"{name}-{label[:60]}"))
    return pytest.mark.parametrize(("server", *names.split()), found, indirect=["server"])
