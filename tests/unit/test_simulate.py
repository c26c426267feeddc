"""The simulator drives the real core: what it counts must add up."""

from __future__ import annotations

import pytest

from benchmarks.simulate import fit, load_of, predicted_ms, simulate, table
from dedup.tools.tuning.load import SST_BYTES_BESIDE_KEY, UUID_BYTES

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def figures() -> list[dict[str, float]]:
    """Three horizons of a day, in micro-batches of an hour; everything sealed at once."""
    return simulate(load_of(30_000, HOUR_MS, 24 * HOUR_MS), 72)


def test_every_record_is_counted_and_repeats_are_found(figures: list[dict[str, float]]) -> None:
    for each in figures:
        assert each["records_in"] == each["rows"] == 30_000
        assert each["unique"] + each["duplicate"] == 30_000
        assert each["unique"] == 28_500
    # Repeats of the last horizon, and of this micro-batch.
    assert all(each["blocks_read"] > 0 for each in figures[2:])


def test_the_simulation_reaches_a_steady_state(figures: list[dict[str, float]]) -> None:
    # A horizon, the lateness of an hour, and up to a bucket of three hours.
    assert 25 * 28_500 <= figures[-1]["live_ids"] <= 30 * 28_500
    middle, end = figures[40], figures[64]
    assert end["segments"] <= middle["segments"] * 1.5
    assert end["segment_bytes"] == pytest.approx(
        (UUID_BYTES + SST_BYTES_BESIDE_KEY) * end["live_ids"], rel=0.15
    )  # except the tail
    assert sum(each.get("deletes", 0) for each in figures) > 0
    assert max(each["depth"] for each in figures) < 16


def test_fitted_costs_equal_the_costs_behind_the_measurements() -> None:
    true = {"fixed": 400.0, "rows": 0.001, "blocks_read": 0.004, "ids_written": 0.0002,
            "filter_bytes_read": 1e-6}  # fmt: skip
    measured, times = [], []
    for n in range(1, 6):
        counts = {
            "rows": 1e6,
            "blocks_read": 1e4 * n,
            "ids_written": 5e5,
            "filter_bytes_read": 1e6 * n,
        }
        stages = {f"{unit}_ms": counts[unit] * true[unit] for unit in counts}
        measured.append({"fixed_ms": 400.0, **counts, **stages})
        times.append(predicted_ms(counts, true))
    cost = fit(measured, times)
    assert cost == pytest.approx(true)
    assert "ratio" in table({"rows": [], "cost_ms": cost})
