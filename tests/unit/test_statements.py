"""The bound of the package's size counts statements, not docstrings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import statements

MODULE = '''"""A docstring."""

def double(number):
    """Another one."""
    if number:
        return 2 * number
    return 0
'''


def test_docstrings_are_no_statements() -> None:
    assert statements.statements(MODULE) == 4


def test_more_statements_than_the_bound_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(statements, "ROOT", tmp_path)
    for name in ("dedup/top.py", "dedup/room/one.py", "dedup/room/inner/two.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(MODULE)
    settings = tmp_path / "pyproject.toml"
    settings.write_text("[tool.rolling-dedup]\nmax-statements = 12\n")
    statements.main()
    assert capsys.readouterr().out.split("\n")[:2] == ["       8 room", "       4 ."]
    settings.write_text("[tool.rolling-dedup]\nmax-statements = 11\n")
    with pytest.raises(SystemExit, match="raise max-statements"):
        statements.main()
