"""DESIGN.md against the tree: invariants that are cited exist, and so do files that it names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "dedup" / "DESIGN.md"
#: "invariant 4", "invariants 2 and 4", "invariants 9 to 11", "Invariant 4:"
_CITED = re.compile(r"\binvariants?\s+(\d+)(?:\s+(and|to)\s+(\d+))?", re.IGNORECASE)
_PATH = re.compile(
    r"`((?:benchmarks|catalog|cli|core|kernel|sinks|sources|spark|tests|tools)/[\w/.*-]+\.\w+)`"
)


def headings() -> list[int]:
    lines = DESIGN.read_text().splitlines()
    return [int(found[1]) for line in lines if (found := re.match(r"### Invariant (\d+): ", line))]


def cited(text: str) -> set[int]:
    numbers: set[int] = set()
    for first, word, last in _CITED.findall(text):
        numbers.add(int(first))
        if word == "and":
            numbers.add(int(last))
        elif word == "to":
            numbers |= set(range(int(first), int(last) + 1))
    return numbers


def sources() -> list[Path]:
    kinds = ("*.py", "*.md", "*.c", "*.h")
    rooms = ("dedup", "native", "tests", "benchmarks")
    found = [path for room in rooms for kind in kinds for path in (ROOT / room).rglob(kind)]
    return [*found, ROOT / "README.md"]


def test_invariants_are_numbered_in_order() -> None:
    assert headings() == list(range(1, len(headings()) + 1))


def test_every_invariant_that_is_cited_has_a_heading() -> None:
    missing = {
        str(path.relative_to(ROOT)): left
        for path in sources()
        if (left := cited(path.read_text(errors="replace")) - set(headings()))
    }
    assert missing == {}


def test_every_invariant_is_cited_where_it_is_kept() -> None:
    """An invariant that no module cites is unused, or nobody knows where it is kept."""
    everywhere = set().union(*(cited(p.read_text()) for p in (ROOT / "dedup").rglob("*.py")))
    assert everywhere == set(headings())


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("(invariant 4)", {4}), ("(invariants 2 and 4)", {2, 4}), ("invariants 9 to 11", {9, 10, 11}),
     ("Invariant 14: a birth", {14}), ("no invariant here", set())],
)  # fmt: skip
def test_citations_of_invariants_are_recognised(text: str, numbers: set[int]) -> None:
    assert cited(text) == numbers


def test_files_that_the_pages_name_exist() -> None:
    pages = [DESIGN, DESIGN.with_name("CONTRIBUTING.md"), *DESIGN.parent.glob("decisions/*.md")]
    named = [name for page in pages for name in _PATH.findall(page.read_text())]
    assert len(named) > 20
    bases = (ROOT / "dedup", ROOT)
    assert [n for n in named if not any(list(base.glob(n)) for base in bases)] == []


def test_every_link_of_the_page_has_a_target() -> None:
    text = DESIGN.read_text()
    anchors = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        place, _, anchor = target.partition("#")
        if place:
            assert (DESIGN.parent / place).exists(), target
        else:
            assert anchor in anchors, target


#: The same roles in the folder of every command, and of every package.
def test_no_two_classes_share_a_name() -> None:
    classes = [
        node.name
        for path in (ROOT / "dedup").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(classes).items() if count > 1] == []
