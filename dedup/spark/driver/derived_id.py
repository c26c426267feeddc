"""Record IDs that are computed from a record's columns, as the operator sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pyspark.sql import Column, DataFrame


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
