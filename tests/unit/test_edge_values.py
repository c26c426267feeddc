"""A slice of any length gives the bytes that its rows give one by one, in every format."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from dedup.sinks.columns import Unsuitable
from dedup.sinks.files.text_lines import Dialect, csv_lines, json_lines
from dedup.sinks.postgres.columns import column_type, encoding
from tests.support.edge_values import ALL, SCALARS, Edge

UUIDS = Edge("string", pa.string(), ("00112233-4455-6677-8899-aabbccddeeff",
                                     "AABBCCDD-4455-6677-8899-AABBCCDDEEFF"))  # fmt: skip
JSON = Edge("string", pa.string(), ("{}", '{"a": [1, null]}', '" "'))
#: The dialect of `dedup run`.
RUN = Dialect(header=True, escape='"', also_quoted="", null_fields=True)
COUNTS = [1, 2, 3, 10, 1000]


def slices(edge: Edge, count: int) -> pa.Array:
    """As many values, as a part of a longer array."""
    return edge.array(count + 7).slice(3, count)


def pairs() -> list[tuple[Edge, str]]:
    """Spark's types, and the PostgreSQL types that take them."""
    found = [(UUIDS, "uuid"), (JSON, "jsonb"), (JSON, "json"), (JSON, "character varying")]
    for edge in ALL:
        try:
            base, _, rest = column_type(edge.spark).partition("(")
        except Unsuitable:
            continue
        found.append((edge, base + ("[]" if rest.endswith("[]") else "")))
    return found


def _encoded(edge: Edge, kind: str, values: pa.Array) -> bytes:
    import pgpq

    rows = pa.RecordBatch.from_arrays([encoding(edge.spark, kind, -1)(values)], names=["c"])
    encoder = pgpq.ArrowToPostgresBinaryEncoder(rows.schema)
    encoder.write_header()
    return bytes(encoder.write_batch(rows))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("edge", "kind"), pairs(), ids=lambda each: getattr(each, "spark", each))
def test_postgresql_bytes_of_a_slice_equal_those_of_its_rows(
    edge: Edge, kind: str, count: int
) -> None:
    pytest.importorskip("pgpq")
    values = slices(edge, count)
    one_by_one = [_encoded(edge, kind, values.slice(n, 1)) for n in range(count)]
    assert _encoded(edge, kind, values) == b"".join(one_by_one)


@pytest.mark.parametrize(("dialect", "count"), [(RUN, 100), *((Dialect(), n) for n in COUNTS)])
@pytest.mark.parametrize("lines", [json_lines, csv_lines], ids=["json", "csv"])
@pytest.mark.parametrize("edge", ALL, ids=lambda each: each.spark)
def test_lines_of_a_slice_equal_those_of_its_rows(
    edge: Edge, lines: Callable[[pa.RecordBatch, Dialect], bytes], dialect: Dialect, count: int
) -> None:
    if lines is csv_lines and edge not in SCALARS:
        return
    rows = pa.RecordBatch.from_arrays([slices(edge, count)], names=["c"])
    one_by_one = (lines(rows.slice(n, 1), dialect) for n in range(count))
    assert lines(rows, dialect) == b"".join(one_by_one)
