"""Checks untrusted Avro before fastavro reads it.

The C code of fastavro trusts counts, indexes and depth. Without the check, a few bytes can crash
the worker by recursion or block it with arrays of empty items, and fastavro reads some broken
values as other values. The check adds a third to the time of decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

#: Checks one item in a value, and returns the position of the item's end. The arguments are the
#: value, the item's position, and the number of records around the item.
Step: TypeAlias = Callable[[bytes, int, int], int]

#: Greatest depth of nested records. At a depth of some thousands fastavro crashes the process.
MAX_DEPTH = 200
#: Largest number of items and records that take no bytes. A value may have one more for each byte.
MAX_EMPTY = 1000
#: Largest number of bytes of a decimal. Spark's 38 digits need 16.
MAX_DECIMAL_BYTES = 64


class AvroBounds:
    """Checks values of one schema, which `fastavro.parse_schema` returned."""

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        self._named = named
        self._steps: dict[str, Step] = {}
        self._room = 0
        self._walk = self._step(schema)

    def check(self, value: bytes, begin: int) -> None:
        """Raise ValueError unless the value holds exactly one datum after position `begin`."""
        self._room = MAX_EMPTY + len(value)
        try:
            rest = len(value) - self._walk(value, begin, 0)
        except IndexError:
            rest = -1
        if rest < 0:
            raise ValueError("the bytes end too early")
        if rest:
            raise ValueError(f"{rest} bytes are left over after the record")

    def _count_empty(self, items: int) -> None:
        self._room -= items
        if self._room < 0:
            raise ValueError("too many items or records take no bytes")

    def _step(self, schema: Any) -> Step:
        if isinstance(schema, list):
            branches = [self._step(branch) for branch in schema]

            def union(value: bytes, at: int, depth: int) -> int:
                index, at = _below(len(branches), value, at)
                return branches[index](value, at, depth)

            return union
        if isinstance(schema, str):
            known = _PLAIN.get(schema) or self._steps.get(schema)
            return known or self._step(self._named[schema])
        kind, size = schema["type"], schema.get("size")
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "enum":
            symbols = len(schema["symbols"])
            return lambda value, at, depth: _below(symbols, value, at)[1]
        if kind in ("array", "map"):
            return self._blocks(self._step(schema["items" if kind == "array" else "values"]), kind)
        precision = schema.get("precision")
        if schema.get("logicalType") == "decimal" and isinstance(precision, int):
            return _decimal(precision, size)
        return _fixed(size) if kind == "fixed" else _PLAIN[kind]

    def _record(self, schema: Mapping[str, Any]) -> Step:
        fields: list[Step] = []

        def record(value: bytes, at: int, depth: int) -> int:
            if depth >= MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} records are nested")
            end = at
            for step in fields:
                end = step(value, end, depth + 1)
            if end == at:
                self._count_empty(1)
            return end

        self._steps[schema["name"]] = record  # fields of the record may name the record
        fields += [self._step(one["type"]) for one in schema["fields"]]
        return record

    def _blocks(self, step: Step, kind: str) -> Step:
        def blocks(value: bytes, at: int, depth: int) -> int:
            keys = set()
            while True:
                count, at = _number(value, at)
                if count == 0:
                    return at
                end = None
                if count < 0:
                    size, at = _number(value, at)
                    count, end = -count, at + size
                for _ in range(count):
                    begin = at
                    if kind == "map":
                        at = _text(value, at, depth)
                        if value[begin:at] in keys:
                            raise ValueError("a key occurs twice in a map")
                        keys.add(value[begin:at])
                    at = step(value, at, depth)
                    if at == begin:
                        self._count_empty(count)
                        break
                if end not in (None, at):
                    raise ValueError("a block has another length than it states")

        return blocks


def _number(value: bytes, at: int) -> tuple[int, int]:
    """Return the int or long at a position, and the position after the number."""
    number = value[at]
    at += 1
    if number >= 0x80:
        number, byte, shift = number & 0x7F, 0x80, 7
        while byte >= 0x80:
            byte = value[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if number >> 64 or shift > 70:
                raise ValueError("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def _whole(value: bytes, at: int, depth: int) -> int:
    return at + 1 if value[at] < 0x80 else _number(value, at)[1]


def _text(value: bytes, at: int, depth: int) -> int:
    length, at = _number(value, at)
    if length < 0:
        raise ValueError(f"a text or bytes has the length {length}")
    return at + length


def _fixed(size: int) -> Step:
    if not isinstance(size, int) or size < 0:  # fastavro checks neither
        raise ValueError(f"a fixed type has the size {size!r}")
    return lambda value, at, depth: at + size


def _decimal(precision: int, size: int | None) -> Step:
    """Return the check of a decimal. fastavro would round digits beyond the precision."""
    limit = 10 ** min(precision, 3 * MAX_DECIMAL_BYTES)

    def decimal(value: bytes, at: int, depth: int) -> int:
        length, at = _number(value, at) if size is None else (size, at)
        if not 0 <= length <= MAX_DECIMAL_BYTES:
            raise ValueError(f"a decimal has {length} bytes")
        if not -limit < int.from_bytes(value[at : at + length], "big", signed=True) < limit:
            raise ValueError(f"a decimal has more than {precision} digits")
        return at + length

    return decimal


def _below(count: int, value: bytes, at: int) -> tuple[int, int]:
    index, at = _number(value, at)
    if not 0 <= index < count:
        raise ValueError(f"the schema has no symbol or branch {index}")
    return index, at


def _boolean(value: bytes, at: int, depth: int) -> int:
    if value[at] > 1:
        raise ValueError(f"a boolean is {value[at]}")
    return at + 1


_PLAIN: Mapping[str, Step] = {
    "null": _fixed(0), "boolean": _boolean, "int": _whole, "long": _whole,
    "float": _fixed(4), "double": _fixed(8), "string": _text, "bytes": _text,
}  # fmt: skip
