"""Verdicts of a micro-batch against the sequential rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernel_models import PATHS, array, kernel_settings, load, misaligned, scan

LOW, HIGH = -(2**63), 2**63 - 1

times = st.one_of(
    st.integers(-30, 30), st.sampled_from([LOW, LOW + 1, 0, HIGH - 1, HIGH]), st.integers(LOW, HIGH)
)
records = st.lists(
    st.tuples(st.integers(-2, 2), times, st.booleans(), st.booleans()), max_size=60
).map(sorted)
horizons = st.one_of(st.integers(0, 40), st.sampled_from([HIGH, HIGH - 1, 2**62]))


@pytest.mark.parametrize("path", PATHS)
@given(records=records, horizon_ms=horizons, flags=st.booleans())
@kernel_settings
def test_rule(
    path: str, records: list[tuple[int, int, bool, bool]], horizon_ms: int, flags: bool
) -> None:
    group, time_ms = [r[0] for r in records], [r[1] for r in records]
    known = [int(r[2] and flags) for r in records]
    droppable = [int(r[3] and flags) for r in records]
    got = load(path).scan_verdicts(
        array(group, "i8"),
        array(time_ms, "i8"),
        array(known, "u1"),
        array(droppable, "u1"),
        horizon_ms,
    )
    assert got.dtype == np.uint8
    assert got.tolist() == scan(group, time_ms, known, droppable, horizon_ms)


@pytest.mark.parametrize("path", PATHS)
def test_one_long_group(path: str) -> None:
    n = 5_000
    time_ms = np.sort(np.random.default_rng(6).integers(0, 20_000, n))
    zeros = np.zeros(n, np.uint8)
    got = load(path).scan_verdicts(np.zeros(n, np.int64), time_ms, zeros, zeros, 3)
    assert got.tolist() == scan([0] * n, time_ms.tolist(), [0] * n, [0] * n, 3)


@pytest.mark.parametrize("path", PATHS)
def test_age_of_exactly_the_horizon_is_a_duplicate_and_does_not_prolong(path: str) -> None:
    z = array([0] * 4, "u1")
    got = load(path).scan_verdicts(array([0] * 4, "i8"), array([0, 10, 11, 21], "i8"), z, z, 10)
    assert got.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("path", PATHS)
def test_late_is_not_remembered(path: str) -> None:
    group, time_ms = array([0, 0, 0], "i8"), array([0, 1, 2], "i8")
    z, droppable = array([0] * 3, "u1"), array([1, 0, 1], "u1")
    got = load(path).scan_verdicts(group, time_ms, z, droppable, 10)
    assert got.tolist() == [2, 0, 1]


@pytest.mark.parametrize("path", PATHS)
def test_any_flag_but_zero_counts(path: str) -> None:
    z, flag = array([0], "u1"), array([255], "u1")
    one = array([5], "i8")
    assert load(path).scan_verdicts(one, one, flag, z, 0).tolist() == [1]
    assert load(path).scan_verdicts(one, one, z, flag, 0).tolist() == [2]


@pytest.mark.parametrize("path", PATHS)
def test_alignment_does_not_matter(path: str) -> None:
    group, time_ms = misaligned(array([0, 0, 1], "i8")), misaligned(array([0, 5, 5], "i8"))
    z = array([0] * 3, "u1")
    assert load(path).scan_verdicts(group, time_ms, z, z, 5).tolist() == [0, 1, 0]


@pytest.mark.parametrize("path", PATHS)
def test_no_records(path: str) -> None:
    none, empty = array([], "i8"), array([], "u1")
    assert load(path).scan_verdicts(none, none, empty, empty, 1).tolist() == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("group", "time_ms"), [([1, 0], [0, 0]), ([0, 0], [1, 0])])
def test_unsorted_records_are_refused(path: str, group: list[int], time_ms: list[int]) -> None:
    z = array([0, 0], "u1")
    with pytest.raises(ValueError, match="sorted by group"):
        load(path).scan_verdicts(array(group, "i8"), array(time_ms, "i8"), z, z, 1)


@pytest.mark.parametrize("path", PATHS)
def test_horizon_outside_int64(path: str) -> None:
    none, empty = array([], "i8"), array([], "u1")
    for horizon_ms in (-1, 2**63, -(2**64)):
        with pytest.raises(ValueError, match="horizon_ms"):
            load(path).scan_verdicts(none, none, empty, empty, horizon_ms)
    with pytest.raises(TypeError, match="horizon_ms"):
        load(path).scan_verdicts(none, none, empty, empty, 1.0)  # type: ignore[arg-type]
