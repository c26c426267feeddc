"""Values of every type in a record ID, and bytes that no release may change."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

#: Spark type, value, canonical text.
GOLDEN: list[tuple[str, Any, str]] = [
    ("string", None, "N"),
    ("boolean", True, "T"),
    ("boolean", False, "F"),
    ("tinyint", -128, "n-128;"),
    ("smallint", 7, "n7;"),
    ("int", 0, "n0;"),
    ("bigint", -(2**63), "n-9223372036854775808;"),
    ("decimal(10,3)", Decimal("-12.500"), "n-12.5;"),
    ("decimal(5,2)", Decimal("0.00"), "n0;"),
    ("decimal(38,0)", Decimal(10**38 - 1), f"n{'9' * 38};"),
    ("decimal(38,38)", Decimal("-1E-38"), f"n-0.{'0' * 37}1;"),
    ("decimal(38,18)", Decimal(100), "n100;"),
    ("float", 1.5, "f0x1.8p0;"),
    ("float", -0.0, "f0x0.0p0;"),
    ("double", 0.1, "f0x1.999999999999ap-4;"),
    ("double", -0.0, "f0x0.0p0;"),
    ("double", 5e-324, "f0x0.0000000000001p-1022;"),
    ("double", -1.7976931348623157e308, "f-0x1.fffffffffffffp1023;"),
    ("double", math.nan, "fNaN;"),
    ("double", -math.inf, "f-Infinity;"),
    ("string", "", "s0:"),
    ("string", "bäh;N\x00", "s7:bäh;N\x00"),
    ("string", "\U0001f600", "s4:\U0001f600"),
    ("binary", b"", "b;"),
    ("binary", b"\x00\xff", "b00FF;"),
    ("date", date(1, 1, 1), "d0001-01-01;"),
    ("date", date(2024, 2, 29), "d2024-02-29;"),
    ("timestamp", datetime(2024, 5, 1, 12, 0, 0, 500, UTC), "t1714564800000500;"),
    ("timestamp", datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "t-1;"),
    ("timestamp_ntz", datetime(2024, 3, 31, 2, 30), "l2024-03-31 02:30:00;"),
    ("timestamp_ntz", datetime(1, 1, 1, 0, 0, 0, 500_000), "l0001-01-01 00:00:00.5;"),
    ("array<string>", [], "a0:"),
    ("array<string>", ["a", None, ""], "a3:s1:aNs0:"),
    ("array<array<double>>", [[1.5], [], None], "a3:a1:f0x1.8p0;a0:N"),
    ("struct<x:int,y:struct<p:int,q:string>>", (1, (None, "x")), "(n1;(Ns1:x))"),
    ("array<struct<b:binary,f:boolean>>", [(b"\x01", None), None], "a2:(b01;N)N"),
]
#: The ID of all of them, in this order.
GOLDEN_ID = "f464640e4d17b52f686f04d910fcc3d6"
#: What `random_rows` makes rows of.
SCHEMA = (
    "a boolean, b tinyint, c smallint, d int, e bigint, f decimal(9,4), g decimal(38,20), "
    "h float, i double, j string, k binary, l date, m timestamp, n timestamp_ntz, "
    "o array<string>, p struct<x:int,y:array<struct<z:double,s:string>>>"
)


def random_rows(count: int, seed: int) -> list[tuple[Any, ...]]:
    """Rows of `SCHEMA`, rich in nulls and in values at the ends of types."""
    rng = random.Random(seed)
    makers = _makers(rng)
    return [tuple(make() for make in makers) for _ in range(count)]


def _makers(rng: random.Random) -> list[Callable[[], Any]]:
    def whole(bits: int) -> Callable[[], Any]:
        top = 2 ** (bits - 1)
        return lambda: rng.choice([-top, top - 1, 0, rng.randrange(-top, top)])

    def digits(precision: int, scale: int) -> Callable[[], Any]:
        top = 10**precision - 1
        return lambda: Decimal(
            (
                rng.randrange(2),
                tuple(map(int, str(rng.choice([0, top, rng.randrange(top), 10])))),
                -scale,
            )
        )

    def floating(kind: str) -> Callable[[], Any]:
        bytes_ = struct.calcsize(kind)
        ends = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5]
        return lambda: rng.choice([*ends, struct.unpack(kind, rng.randbytes(bytes_))[0]])

    def text() -> str:
        return "".join(rng.choices("aN:;s1()ä\U0001f600\x00", k=rng.randrange(5)))

    def moment() -> datetime:
        return datetime(1, 1, 3) + timedelta(microseconds=rng.randrange(315_000_000 * 10**9))

    makers: list[Callable[[], Any]] = [
        lambda: rng.random() < 0.5, whole(8), whole(16), whole(32), whole(64), digits(9, 4),
        digits(38, 20), floating("<f"), floating("<d"), text,
        lambda: rng.randbytes(rng.randrange(4)), lambda: moment().date(),
        lambda: moment().replace(tzinfo=UTC), moment,
    ]  # fmt: skip

    def maybe(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: None if rng.random() < 0.2 else make()

    inner = [maybe(floating("<d")), maybe(text)]
    fields = [
        maybe(whole(32)),
        maybe(
            lambda: [maybe(lambda: tuple(m() for m in inner))() for _ in range(rng.randrange(3))]
        ),
    ]
    nested: list[Callable[[], Any]] = [
        lambda: [maybe(text)() for _ in range(rng.randrange(4))],
        lambda: tuple(make() for make in fields),
    ]
    return [maybe(make) for make in (*makers, *nested)]
