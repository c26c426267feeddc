"""Spark's types, from the names that ``simpleString`` gives them; no Spark is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT = re.compile(r"string collate \w+|(?:var)?char\(\d+\)")


@dataclass(frozen=True, slots=True)
class SparkType:
    """A type of Spark.

    Parameters
    ----------
    name : str
        ``array``, ``map``, ``struct``, or a scalar's name, such as ``bigint`` or ``decimal(9,2)``.
    inner : tuple of (str, SparkType)
        Of a structure its fields, of an array its element, of a map its key and value.
    """

    name: str
    inner: tuple[tuple[str, SparkType], ...] = ()


def spark_type(told: str) -> SparkType:
    """Return the type of this name; what cannot be understood becomes a scalar of that name."""
    if told.endswith(">"):
        name, _, rest = told[:-1].partition("<")
        parts = _divided(rest)
        if name == "array" and len(parts) == 1:
            return SparkType(name, (("element", spark_type(parts[0])),))
        if name == "map" and len(parts) == 2:
            return SparkType(name, (("key", spark_type(parts[0])), ("value", spark_type(parts[1]))))
        if name == "struct":
            fields = [part.partition(":")[::2] for part in parts]
            return SparkType(name, tuple((field, spark_type(kind)) for field, kind in fields))
    return SparkType("string" if _TEXT.fullmatch(told) else told)


def _divided(told: str) -> list[str]:
    """Return what stands between commas that are in no brackets."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(told):
        if letter in "<(":
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(told[begin:place])
            begin = place + 1
    return [*parts, told[begin:]] if told else []
