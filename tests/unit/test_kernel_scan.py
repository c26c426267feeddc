"""Verdicts of a micro-batch against the sequential rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.kernel._kernel import Kernel
from tests.support.kernel_models import array, kernel_settings, scan

LOW, HIGH = -(2**63), 2**63 - 1

times = st.one_of(
    st.integers(-30, 30), st.sampled_from([LOW, LOW + 1, 0, HIGH - 1, HIGH]), st.integers(LOW, HIGH)
)
records = st.lists(
    st.tuples(st.integers(-2, 2), times, st.booleans(), st.booleans()), max_size=60
).map(sorted)
horizons = st.one_of(st.integers(0, 40), st.sampled_from([HIGH, HIGH - 1, 2**62]))


def verdicts(
    tested: Kernel,
    group: list[int],
    time_ms: list[int],
    horizon_ms: int,
    known: Sequence[int] = (),
    droppable: Sequence[int] = (),
) -> list[int]:
    flags = (array(given or [0] * len(group), "u1") for given in (known, droppable))
    got = tested.scan_verdicts(array(group, "i8"), array(time_ms, "i8"), *flags, horizon_ms)
    assert got.dtype == np.uint8
    return got.tolist()


@given(records=records, horizon_ms=horizons, flags=st.booleans())
@kernel_settings
def test_verdicts_follow_the_sequential_rule(
    tested: Kernel, records: list[tuple[int, int, bool, bool]], horizon_ms: int, flags: bool
) -> None:
    group, time_ms = [r[0] for r in records], [r[1] for r in records]
    known = [int(r[2] and flags) for r in records]
    droppable = [int(r[3] and flags) for r in records]
    expected = scan(group, time_ms, known, droppable, horizon_ms)
    assert verdicts(tested, group, time_ms, horizon_ms, known, droppable) == expected


def test_any_nonzero_flag_counts(tested: Kernel) -> None:
    assert verdicts(tested, [5], [5], 0, known=[255]) == [1]
    assert verdicts(tested, [5], [5], 0, droppable=[255]) == [2]


@pytest.mark.parametrize(("group", "time_ms"), [([1, 0], [0, 0]), ([0, 0], [1, 0])])
def test_unsorted_records_are_refused(
    compiled: Kernel, group: list[int], time_ms: list[int]
) -> None:
    with pytest.raises(ValueError, match="sorted by group"):
        verdicts(compiled, group, time_ms, 1)


def test_an_invalid_horizon_is_rejected(compiled: Kernel) -> None:
    for horizon_ms in (-1, 2**63, -(2**64)):
        with pytest.raises(ValueError, match="horizon_ms"):
            verdicts(compiled, [], [], horizon_ms)
    with pytest.raises(TypeError, match="horizon_ms"):
        verdicts(compiled, [], [], 1.0)  # type: ignore[arg-type]
