"""`make bench`: packing rows whose time is in the ID, ns per row, by the scheme of the ID."""

from __future__ import annotations

import uuid
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.bench_kernel import per_id
from dedup.spark.executor.pack import Packer
from dedup.spark.idtime import IdTime, time_from_id
from tests.spark.test_operator_pack import TIME, layout, plan

COUNT = 65_536
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NOW_MS = 1_767_225_600_000


def text_in(number: int, alphabet: str, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(alphabet))
        digits.append(alphabet[digit])
    return "".join(reversed(digits))


def ids(name: str) -> pa.Array:
    """IDs of the last minutes before `_NOW_MS`."""
    rng = np.random.default_rng(1)
    times_ms = (_NOW_MS - rng.integers(0, 600_000, COUNT)).tolist()
    low = [int.from_bytes(rng.bytes(16), "big") for _ in range(COUNT)]
    both = zip(times_ms, low, strict=True)
    if name == "uuid7":
        numbers = (ms << 80 | 7 << 76 | 2 << 62 | bits & (1 << 62) - 1 for ms, bits in both)
        return pa.array([str(uuid.UUID(int=number)) for number in numbers])
    if name == "ulid":
        crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
        return pa.array([text_in(ms << 80 | bits >> 48, crockford, 26) for ms, bits in both])
    if name == "ksuid":
        seconds = ((ms // 1000 - 1_400_000_000, bits) for ms, bits in both)
        return pa.array([text_in(s << 128 | bits, _BASE62, 27) for s, bits in seconds])
    if name == "objectid":
        return pa.array([f"{ms // 1000:08x}{bits >> 64:016x}" for ms, bits in both])
    flakes = [ms - 1_288_834_974_657 << 22 | bits >> 106 for ms, bits in both]
    return pa.array(flakes if name == "bigint" else list(map(str, flakes)))


@pytest.mark.parametrize("name", ["uuid7", "ulid", "ksuid", "objectid", "snowflake", "bigint"])
@pytest.mark.benchmark(group="pack, with the time in the ID")
def test_pack(benchmark: BenchmarkFixture, name: str) -> None:
    column = ids(name)
    others = {f"c{n}": np.random.default_rng(n).integers(0, 1 << 60, COUNT) for n in range(4)}
    now = pa.array([_NOW_MS * 1000] * COUNT, pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_pydict({"id": column, **others, "now": now})
    is_snowflake = name in ("snowflake", "bigint")
    time: IdTime = (
        time_from_id("snowflake", epoch="twitter") if is_snowflake else time_from_id(name)
    )
    kind = "bigint" if name == "bigint" else "string"
    made = plan(
        time=replace(TIME, column=None, in_id=time), id_columns=(("id", "id", kind),),
        now_column="now", user_columns=5, body_columns=5,
    )  # fmt: skip

    def pack() -> Packer:
        packer = Packer(made, layout())
        packer.add(batch)
        assert sum(1 for _ in packer.flush())
        return packer

    assert pack().observed[""][0].newest_ms > _NOW_MS - 2000
    per_id(benchmark, pack, COUNT)
