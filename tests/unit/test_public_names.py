"""What the packages show of themselves: public names, operators as calls, errors in a notebook."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module

import pytest

from dedup import dedup_by_id, dedup_by_sequence
from dedup.errors import ConfigError


@pytest.mark.parametrize("package", ["", ".sources.record_id", ".tools"])
def test_dir_shows_the_public_names_and_nothing_else(package: str) -> None:
    module = import_module(f"dedup{package}")
    assert dir(module) == module.__all__
    for name in module.__all__:
        assert getattr(module, name) is getattr(module, name)
    with pytest.raises(AttributeError, match=rf"^module 'dedup{package}' has no attribute 'x'$"):
        module.x  # noqa: B018


def test_an_operator_is_shown_as_the_call_that_makes_it() -> None:
    assert repr(dedup_by_id("id", horizon="7 days")) == "dedup_by_id(id='id', horizon='7 days')"
    given = dedup_by_id(["a", "b"], horizon=timedelta(days=7), timestamp="t", late="drop",
                        buckets=8, fpr=0.01, catalog="s3://KEY:SECRET@bucket/orders",
                        source_partition=["topic", "partition"])  # fmt: skip
    assert repr(given) == (
        "dedup_by_id(id=('a', 'b'), horizon=datetime.timedelta(days=7), "
        "catalog='s3://bucket/orders', timestamp='t', source_partition=('topic', 'partition'), "
        "late='drop')"
    )
    numbered = dedup_by_sequence("device", "n", expire_after="7 days", gaps="drop")
    assert repr(numbered) == (
        "dedup_by_sequence(producer='device', sequence='n', expire_after='7 days', gaps='drop')"
    )


def test_a_notebook_shows_the_callers_lines_of_an_error_and_its_text() -> None:
    """IPython asks an exception for `_render_traceback_` before it makes a traceback itself."""
    with pytest.raises(ConfigError) as caught:
        dedup_by_id("id", horizon="7 dayz")
    first, *_, last = caught.value._render_traceback_()
    assert 'dedup_by_id("id", horizon="7 dayz")' in first
    assert last.startswith("ConfigError: horizon='7 dayz' is not a duration")
    assert len("\n".join(caught.value._render_traceback_()).splitlines()) < 8
    with_topic = ConfigError("text", remedy="clock")
    assert with_topic._render_traceback_() == [
        "ConfigError: text\nRemedies: dedup remedies clock"
    ]  # fmt: skip
