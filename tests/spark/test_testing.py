"""The page's test for users passes as it stands, and fails where the pipeline loses a record."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import dedup.spark

PAGE = Path(dedup.spark.__file__).with_name("README.md")


@pytest.mark.parametrize("broken", [False, True])
def test_the_snippet_for_users_tests(spark: SparkSession, tmp_path: Path, broken: bool) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (snippet,) = (snippet for snippet in snippets if "small_query" in snippet)
    names: dict[str, Any] = {}
    pipeline = "events.transform(operator)" + ".where(\"order_id != 'b'\")" * broken
    exec(snippet.replace("events.transform(operator)", pipeline), names)
    if not broken:
        names["test_every_order_goes_on_once"](spark, tmp_path)
        return
    with pytest.raises(AssertionError, match=r"^1 lost: 'b' \(0 came out, 1 should\)$"):
        names["test_every_order_goes_on_once"](spark, tmp_path)
