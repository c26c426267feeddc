"""Counts the statements of each room of the package, against the bound in `pyproject.toml`.

python -m tests.support.statements
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def statements(source: str) -> int:
    """Count the statements of a module. Docstrings do not count."""
    nodes = list(ast.walk(ast.parse(source)))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = sum(isinstance(n, documented) and ast.get_docstring(n) is not None for n in nodes)
    return sum(isinstance(node, ast.stmt) for node in nodes) - docstrings


def by_room(package: Path) -> Counter[str]:
    """Return the statements of each folder of the package. Its own modules count as "."."""
    rooms = Counter[str]()
    for path in package.rglob("*.py"):
        room, *rest = path.relative_to(package).parts
        rooms[room if rest else "."] += statements(path.read_text(encoding="utf-8"))
    return rooms


def main() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    bound = settings["tool"]["rolling-dedup"]["max-statements"]
    rooms = by_room(ROOT / "dedup")
    for room, count in sorted(rooms.items(), key=lambda each: -each[1]):
        print(f"{count:8,} {room}")
    print(f"{rooms.total():8,} statements of at most {bound:,}")
    if rooms.total() > bound:
        sys.exit("Delete some, or raise max-statements in pyproject.toml by a decision.")


if __name__ == "__main__":
    main()
