"""Every mutant still fits the source; `make mutants` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant_list import MUTANTS, DoesNotApply, Mutant

PACKAGE = Path(__file__).resolve().parents[2] / "dedup"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_applies_and_is_python(mutant: Mutant) -> None:
    text = mutant.applied(PACKAGE)
    assert text != (PACKAGE / mutant.file).read_text()
    compile(text, mutant.file, "exec")
    for tests in mutant.tests:
        file, *names = tests.split("::")
        code = (PACKAGE.parent / "tests" / file).read_text()
        for name in names:
            assert f" {name.partition('[')[0]}(" in code, tests


def test_a_mutant_whose_text_is_gone_is_reported() -> None:
    gone = Mutant("gone", "errors/__init__.py", (("no such text", ""),), ())
    with pytest.raises(DoesNotApply, match="holds 'no such text' 0 times"):
        gone.applied(PACKAGE)
