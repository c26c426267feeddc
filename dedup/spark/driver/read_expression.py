"""Reads what a Column does, of either kind of session."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame

from dedup.spark.driver.expression import Expression, Words
from dedup.spark.driver.expression_classic import read_classic
from dedup.spark.driver.expression_connect import read_connect


def read_expression(given: Column, df: DataFrame, *, case_sensitive: bool) -> Expression:
    """Read what a Column does, without its alias.

    Parameters
    ----------
    given : Column
        Of classic Spark or of Spark Connect.
    df : DataFrame
        What it is applied to.
    case_sensitive : bool
        Whether the session tells names apart by case; where not, they come in lower case.
    """
    words = Words(given, df.columns, case_sensitive)
    node = getattr(given, "_jc", None)
    if node is not None:
        words.out.text = read_classic(words, node.node())
    else:
        connect: Any = given
        words.out.text = read_connect(words, connect.to_plan(df.sparkSession.client))
    words.out.is_order = words.out.text.startswith(("SortOrder(", "sort_order("))
    return words.out
