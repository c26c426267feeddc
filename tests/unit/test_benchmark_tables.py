"""Tables of measured figures on the pages match the results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import sizing
from benchmarks.tables import PAGES, TABLES, filled, result


@pytest.mark.parametrize(
    ("page", "table"), zip(PAGES, ("pipelines", "cluster", "shards"), strict=True)
)
def test_the_tables_come_from_the_results(page: Path, table: str) -> None:
    text = page.read_text()
    assert f"<!-- table {table} -->\n| " in text
    assert filled(text) == text


def test_every_table_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert [name for name in TABLES if f"<!-- table {name} -->" not in text] == []


@pytest.mark.parametrize(
    ("page", "figure", "invented"),
    [(PAGES[0], "| 1978 |", "| 1 |"), (PAGES[1], "| 16.2 / 13.9 /", "| 1.0 / 13.9 /")],
)
def test_a_figure_that_differs_from_the_results_is_replaced(
    page: Path, figure: str, invented: str
) -> None:
    text = page.read_text()
    assert filled(text.replace(figure, invented)) == text != text.replace(figure, invented)


def test_the_picture_of_filters_is_drawn_from_its_cells() -> None:
    cells = result("sizing")["cells"]
    svg, less = sizing.picture(cells), sizing.picture(cells[:3])
    for name, colour in sizing.FILTERS.values():
        assert f">{name}<" in svg
        # The legend has one point of each colour.
        assert svg.count(f'fill="{colour}"') == 1 + 9
        assert less.count(f'fill="{colour}"') == 1 + 1
