"""What users may give for a column of a record: a name, an expression, or a recipe for an ID."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

from pyspark.sql import Column, DataFrame

ColumnOrName: TypeAlias = str | Column
ColumnsOption: TypeAlias = ColumnOrName | Sequence[ColumnOrName]


class DerivedId(ABC):
    """A way to compute a record ID; `dedup.record_id` has the ways."""

    @abstractmethod
    def of(self, df: DataFrame) -> Column:
        """Return the ID as a column of the DataFrame."""

    @abstractmethod
    def chosen(self, df: DataFrame) -> list[Column]:
        """Return the columns that the ID is computed from."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in the birth certificate."""
