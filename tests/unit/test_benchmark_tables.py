"""Tables of measured figures on the pages match the results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tables import PAGES, TABLES, filled


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_the_tables_come_from_the_results(page: Path) -> None:
    text = page.read_text()
    assert "<!-- table pipelines -->\n| " in text
    assert filled(text) == text


def test_every_table_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in TABLES if f"<!-- table {name} -->" not in text] == []


def test_a_figure_that_nobody_measured_is_replaced() -> None:
    text = PAGES[0].read_text()
    assert filled(text.replace("| 1978 |", "| 1 |")) == text != text.replace("| 1978 |", "| 1 |")
