"""Tables that could lose, change or repeat rows are rejected, at the start and under the query."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dedup.errors import ConfigError, DataError
from tests.databases.database import COLUMNS, Columns, Database, Sink, batch_of, cases
from tests.support.needs import some_long

MAKE = "CREATE TABLE t (n int NOT NULL PRIMARY KEY, text varchar(3))"
PARTED = "CREATE TABLE {} (n int, text text) PARTITION BY RANGE (n)"
#: One server has this wrapper once, for all tests.
FOREIGN = (
    "DROP FOREIGN DATA WRAPPER IF EXISTS away CASCADE",
    "CREATE FOREIGN DATA WRAPPER away",
    "CREATE SERVER away FOREIGN DATA WRAPPER away",
)
VIEW = (
    "CREATE TABLE base (n int, text text)",
    "CREATE FUNCTION into_base() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN INSERT INTO base VALUES (NEW.*); RETURN NEW; END $$",
    "CREATE VIEW t AS SELECT * FROM base",
    "CREATE TRIGGER into_base INSTEAD OF INSERT ON t FOR EACH ROW EXECUTE FUNCTION into_base()",
)


@cases(
    "statements columns options why",
    both=[
        ([], COLUMNS, {}, "Table t does not exist"),
        (["CREATE VIEW t AS SELECT 1 AS n"], COLUMNS, {}, "t is (a view|not a table, but a view)"),
        (["CREATE TABLE t (n int)"], COLUMNS, {}, "has no column 'text'; it has n"),
        (['CREATE TABLE t (n int, "Text" text)'], COLUMNS, {}, "column 'text'; it has 'Text'"),
        ([MAKE], [("text", "string")], {}, "Column 'n' of table t must have a value"),
        ([MAKE], COLUMNS, {"mode": "upsert", "key": "k"},
         "no column 'k' of the options .*; it has n, text"),
        ([MAKE], COLUMNS, {"mode": "upsert", "key": "n", "version": "v"}, "has no column 'v'"),
    ],
    postgres=[
        (["CREATE UNLOGGED TABLE t (n int, text text)"], COLUMNS, {},
         "Table t is UNLOGGED: a crash .*empty"),
        ([PARTED.format("t"),
          "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (n)",
          "CREATE UNLOGGED TABLE lowest PARTITION OF low FOR VALUES FROM (0) TO (1)"], COLUMNS, {},
         "Partition lowest of table t is UNLOGGED.*ALTER TABLE lowest SET LOGGED"),
        ([*FOREIGN, "CREATE FOREIGN TABLE t (n int, text text) SERVER away"], COLUMNS, {},
         "Table t is a foreign table"),
        ([*FOREIGN, PARTED.format("t"),
          "CREATE FOREIGN TABLE old PARTITION OF t FOR VALUES FROM (0) TO (9) SERVER away"],
         COLUMNS, {}, "Partition old of table t is a foreign table"),
        (VIEW, COLUMNS, {}, "Table t is a view, .*triggers decide"),
        (["CREATE MATERIALIZED VIEW t AS SELECT 1 AS n, '' AS text"], COLUMNS, {},
         "Table t is not a table"),
        (["CREATE SEQUENCE t"], COLUMNS, {}, "Table t is not a table"),
        ([MAKE, "CREATE RULE gone AS ON INSERT TO t DO INSTEAD NOTHING"], COLUMNS, {},
         "has a rule for INSERT"),
        (["CREATE DOMAIN whole AS int NOT NULL", "CREATE TABLE t (n whole, text text)"],
         [("text", "string")], {}, "Column 'n' of table t must have a value"),
        *(([MAKE, f"CREATE {kind} m AS SELECT 1 AS slot"], COLUMNS, {option: "m"},
           "Table m is (UNLOGGED|a view)")
          for kind in ("UNLOGGED TABLE", "VIEW") for option in ("markers", "quarantine")),
    ],
    mysql=[
        *(([f"CREATE TABLE t (n int) ENGINE = {engine}"], COLUMNS, {},
           f"of the engine {engine}") for engine in ("MyISAM", "Aria", "MEMORY")),
        (["CREATE SEQUENCE t"], COLUMNS, {}, "t is not a table, but a sequence"),
        (["CREATE TABLE t (n int) ENGINE = MyISAM PARTITION BY HASH (n) PARTITIONS 2"], COLUMNS,
         {}, "ALTER TABLE t ENGINE = InnoDB"),
        ([MAKE, "CREATE TABLE m (n int) ENGINE = MyISAM"], COLUMNS, {"markers": "m"},
         "`m` is of the engine MyISAM"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_rejected(
    db: Database, statements: list[str], columns: Columns,
    options: dict[str, str], why: str,
) -> None:  # fmt: skip
    db.run("SELECT 1", *statements)
    with pytest.raises(ConfigError, match=why):
        db.work(columns, **options)


#: A collation that the server takes for one to which different texts may be equal. The server of
#: the tests has no ICU, which is needed to create one.
CI = (
    "CREATE COLLATION ci (locale = 'C')",
    "UPDATE pg_collation SET collisdeterministic = false WHERE oid = to_regcollation('ci')",
)
#: An operator class that takes texts for equal that differ in case.
CI_OPS = (
    "CREATE FUNCTION cmp(text, text) RETURNS int IMMUTABLE LANGUAGE sql AS "
    "$$ SELECT bttextcmp(lower($1), lower($2)) $$",
    "CREATE OPERATOR CLASS ci_ops FOR TYPE text USING btree AS "
    "OPERATOR 3 =, FUNCTION 1 cmp(text, text)",
)
UTF8 = "CHARACTER SET utf8mb4 COLLATE"
TEXT, NUMBER, ASIDE = {"key": "text"}, {"key": "n"}, {"quarantine": "refused"}


@cases(
    "statements options why",
    both=[
        (["ALTER TABLE numbers DROP COLUMN text"], {}, "has no column 'text'|column \"text\" of"),
        (["ALTER TABLE numbers RENAME TO base", "CREATE VIEW numbers AS SELECT * FROM base"], {},
         "numbers is (a view|not a table, but a view)|cannot copy to view"),
    ],
    postgres=[
        (["ALTER TABLE numbers SET UNLOGGED"], {}, "Table numbers is UNLOGGED"),
        (["ALTER TABLE dedup_markers SET UNLOGGED"], {}, "Table dedup_markers is UNLOGGED"),
        (["ALTER TABLE refused SET UNLOGGED"], ASIDE, "Table refused is UNLOGGED"),
        (["ALTER TABLE numbers RENAME TO base", PARTED.format("numbers"),
          "CREATE UNLOGGED TABLE low PARTITION OF numbers FOR VALUES FROM (0) TO (99)"], {},
         "Partition low of table numbers is UNLOGGED"),
        (["CREATE RULE gone AS ON INSERT TO numbers DO INSTEAD NOTHING"], ASIDE,
         "has a rule for INSERT"),
        (["CREATE RULE gone AS ON INSERT TO refused DO INSTEAD NOTHING"], ASIDE,
         "Table refused has a rule for INSERT"),
        (["ALTER TABLE numbers ALTER n TYPE bigint"], {}, "other types than when the query start"),
        (["ALTER TABLE numbers ALTER n TYPE text"], {}, "Column 'n' of the stream does not go int"),
        # The bytes of an integer are also valid as a small fraction.
        *((["ALTER TABLE numbers ALTER n TYPE real"], options, "Column 'n' of the stream does not")
          for options in ({}, TEXT)),
        ([*CI, "CREATE UNIQUE INDEX other ON numbers (text COLLATE ci)"], TEXT,
         'by collation ci .*DROP INDEX other'),
        ([*CI_OPS, "CREATE UNIQUE INDEX other ON numbers (text ci_ops)"], TEXT,
         "compares by .*operator class ci_ops"),
        (["CREATE UNIQUE INDEX other ON numbers (text bpchar_pattern_ops)"], TEXT,
         "compares by .*operator class bpchar_pattern_ops"),
        (["CREATE UNIQUE INDEX other ON dedup_markers (query_id, sink bpchar_ops, slot)"], {},
         "The unique index other over the key of table .*dedup_markers"),
        ([*CI, "ALTER TABLE numbers ALTER text TYPE text COLLATE ci"], TEXT,
         'by collation ci .*ALTER COLUMN text TYPE text COLLATE "C"'),
    ],
    mysql=[
        *(([f"ALTER TABLE {change}"], options, why) for change, options, why in [
            ("numbers MODIFY n decimal(4,0)", {}, "Column 'n' .* room for 4 and 0"),
            ("numbers MODIFY n float", {}, "Column 'n' .* there float"),
            ("numbers MODIFY text char(9)", {}, "Column 'text' .* there char"),
            ("numbers MODIFY n bigint", {}, "columns of table numbers have other types"),
            ("numbers MODIFY n int NOT NULL", {}, "columns of table numbers have other types"),
            ("numbers ADD COLUMN new int NOT NULL", {}, "Column 'new' of table numbers must have"),
            ("numbers ENGINE = MEMORY", {}, "is of the engine MEMORY"),
            ("dedup_markers ENGINE = Aria", {}, "`dedup_markers` is of the engine Aria"),
            ("dedup_markers DROP PRIMARY KEY", {}, "cannot hold markers.* primary key marker_key"),
            (f"dedup_markers MODIFY marker_key varchar(200) {UTF8} utf8mb4_general_ci", {},
             "hold markers"),
            ("dedup_markers MODIFY marker longtext", {}, "columns marker_key, marker, holder of "),
            ("numbers ADD UNIQUE other (text(5))", NUMBER, "has another unique index, other"),
            ("numbers DROP PRIMARY KEY, ADD UNIQUE (n, text(5))", NUMBER, "no unique index over"),
            (f"numbers MODIFY text varchar(9) {UTF8} utf8mb4_bin", TEXT,
             "'text' .* has the collation utf8mb4_bin in table numbers"),
        ]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", some_long(["", "atomic"], ""), ids=["task", "driver"])
def test_an_unsafe_change_of_the_tables_stops_the_query_and_its_next_start(
    db: Database, statements: list[str], options: dict[str, str], why: str,
    mode: str,
) -> None:  # fmt: skip
    """Transactions of tasks and of the driver raise the error of a new start."""
    key = f", PRIMARY KEY ({options['key']})" if "key" in options else ""
    db.run(f"CREATE TABLE numbers (n int, text {db.key_text}{key})")
    mode = mode or ("upsert" if "key" in options else "append")
    sink = Sink(db, mode=mode, **options)
    for number in range(2):
        sink.publish(number, batch_of([number], f"t{number}"))
    db.run(*statements)
    before = db.run("SELECT * FROM numbers")
    with pytest.raises(ConfigError, match=why):
        sink.publish(2, batch_of([5], "t5"))
    assert sorted(db.run("SELECT * FROM numbers")) == sorted(before)
    if "other types" not in why:
        with pytest.raises(ConfigError, match=why):
            Sink(db, mode=mode, **options)


def test_the_query_continues_once_the_table_is_as_before(sink: Sink, db: Database) -> None:
    db.run("ALTER TABLE numbers RENAME COLUMN text TO other")
    with pytest.raises(ConfigError):
        sink.batch("run1", 1, [2])
    db.run("ALTER TABLE numbers RENAME COLUMN other TO text")
    sink.batch("run1", 1, [2])
    sink.assert_once(3)


@cases(
    "make key changes",
    postgres=[(
        ["CREATE TABLE numbers (n int, text text UNIQUE) PARTITION BY HASH (text)",
         "CREATE TABLE p0 PARTITION OF numbers FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
         "CREATE TABLE p1 PARTITION OF numbers FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
         "CREATE RULE one AS ON DELETE TO numbers DO ALSO SELECT 1"],
        "text",
        ["ALTER TABLE numbers ADD COLUMN later int",
         "CREATE UNIQUE INDEX ON numbers (text) INCLUDE (n)",
         "CREATE UNIQUE INDEX ON numbers (text text_pattern_ops)",
         "CREATE UNIQUE INDEX ON numbers (text, n)",
         "ALTER TABLE numbers DETACH PARTITION p1; "
         "CREATE TABLE p2 PARTITION OF numbers FOR VALUES WITH (MODULUS 2, REMAINDER 1); "
         "INSERT INTO numbers SELECT * FROM p1",
         "CREATE RULE none AS ON INSERT TO p0 DO INSTEAD NOTHING",  # never for rows of numbers
         "ANALYZE numbers"],
    )],
    mysql=[(
        ["CREATE TABLE numbers (n int AUTO_INCREMENT, text text, PRIMARY KEY (n)) "
         "PARTITION BY HASH (n)"],
        "n",
        [f"ALTER TABLE numbers {change}" for change in (
            "ADD COLUMN more int FIRST", "ADD INDEX (text(5))", "COMMENT 'x'",
            "AUTO_INCREMENT = 99", "ADD PARTITION PARTITIONS 2", "MODIFY text text COMMENT 'x'",
            "ADD SYSTEM VERSIONING")],
    )],
)  # fmt: skip
def test_a_change_that_loses_nothing_does_not_stop_the_query(
    db: Database, make: list[str], key: str, changes: list[str]
) -> None:
    db.run(*make)
    sink = Sink(db, mode="upsert", key=key)
    for batch_id, change in enumerate(changes):
        sink.publish(batch_id, batch_of([batch_id], f"t{batch_id}"))
        db.run(change)
    sink.publish(len(changes), batch_of([len(changes)], "T1"))
    sink.assert_once(len(changes) + 1)


def test_defaults_and_generated_values_are_filled_in(db: Database) -> None:
    kind = db.own(postgres="int GENERATED ALWAYS AS IDENTITY", mysql="bigint AUTO_INCREMENT")
    db.run(f"CREATE TABLE t (i {kind} PRIMARY KEY, n int, d int NOT NULL DEFAULT 7, "
           "g int GENERATED ALWAYS AS (n + 1) STORED)")  # fmt: skip
    db.write(pa.record_batch({"n": pa.array([-1], pa.int32())}), columns=[("n", "int")])
    assert db.run("SELECT i, n, d, g FROM t") == [(1, -1, 7, 0), (2, -1, 7, 0)]


def test_names_with_quotes_and_percent_signs_are_accepted(db: Database) -> None:
    """The clients read percent signs as placeholders."""
    table = db.own(postgres='"a%b"."T""%s"', mysql="`T``%s`")
    markers = db.own(postgres='"m""%m.m"', mysql="`m``%m.m`")
    columns, quote = [("n%s", "int"), ('%(x)`s".', "string")], table[0]
    first, second = (quote + name.replace(quote, quote * 2) + quote for name, _ in columns)
    schema = db.own(postgres='CREATE SCHEMA "a%b"', mysql="SELECT 1")
    db.run(schema, f"CREATE TABLE {table} ({first} int PRIMARY KEY, {second} text)")
    for mode in ("upsert", "atomic"):
        rows = batch_of([1], mode).rename_columns([name for name, _ in columns])
        named = {"table": table, "key": "n%s", "markers": markers, "name": mode}
        db.write(rows, columns=columns, mode=mode, **named)
        assert db.run(f"SELECT * FROM {table}") == [(1, mode)]
    assert len(db.run(f"SELECT * FROM {markers}")) > 1


def test_rows_go_into_a_partitioned_table(db: Database) -> None:
    parts = db.own(postgres="", mysql=" (PARTITION low VALUES LESS THAN (10))")
    db.run(f"{MAKE} PARTITION BY RANGE (n){parts}")
    if not parts:
        db.run("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    db.write(batch_of([1, 2]), mode="upsert", key="n")
    low = db.own(postgres="low", mysql="t PARTITION (low)")
    assert db.run(f"SELECT count(*) FROM {low}") == [(2,)]
    why = db.own(postgres="no partition of relation", mysql=r'has no partition .* is {"n": 10')
    with pytest.raises(DataError, match=why):
        db.write(batch_of([2, 10]), mode="upsert", key="n", name="other")


def test_a_missing_privilege_is_a_configuration_error(db: Database) -> None:
    """A user who may not create tables uses a table of markers that is there."""
    markers = "SELECT, INSERT, UPDATE ON dedup_markers"
    Sink(db, checkpoint="admin")
    reader = db.as_user("SELECT ON numbers", markers)
    writer = db.as_user("SELECT, INSERT ON numbers", markers)
    with pytest.raises(
        ConfigError, match=r"permission denied for table numbers|INSERT command den"
    ):
        Sink(reader, checkpoint="reader").batch("run1", 0, [0])
    Sink(writer, checkpoint="writer").batch("run1", 0, [0], [1])
    assert db.run("SELECT n FROM numbers ORDER BY n") == [(0,), (1,)]
    db.run("DROP TABLE dedup_markers")
    with pytest.raises(ConfigError, match=r"permission denied for schema|CREATE command denied"):
        Sink(writer, checkpoint="new")
