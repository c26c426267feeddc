"""Durations in every form that Spark's users write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup.errors import ConfigError
from dedup.values.duration import MAX_DURATION_MS, MS_PER_UNIT, duration_ms, format_ms


@pytest.mark.parametrize(
    ("text", "wanted_ms"),
    [
        ("7 days", 604_800_000),
        ("100 milliseconds", 100),
        ("1 millisecond", 1),
        ("1 day 12 hours", 129_600_000),
        ("1day12hours", 129_600_000),
        ("  2  WEEKS ", 1_209_600_000),
        ("interval 5 minutes", 300_000),
        ("INTERVAL 5 minutes", 300_000),
        ("10 min", 600_000),
        ("10 mins", 600_000),
        ("10m", 600_000),
        ("90s", 90_000),
        ("5 secs", 5_000),
        ("3h", 10_800_000),
        ("2 hrs", 7_200_000),
        ("250ms", 250),
        ("1w 1d", 691_200_000),
        ("0 seconds", 0),
        ("1.5 hours", 5_400_000),
        # Binary fractions are not exact here.
        ("1.1 days", 95_040_000),
        ("1.001 seconds", 1_001),
        ("0.001 seconds 0.999 seconds", 1_000),
    ],
)
def test_durations_are_read_from_text(text: str, wanted_ms: int) -> None:
    assert duration_ms(text, option="horizon") == wanted_ms


@pytest.mark.parametrize(
    "text",
    ["", "  ", "interval", "7", "days", "7 month", "1 year", "-1 day", "1 day, 2 hours", "1e3 s",
     "1.5.5 days", ".5 days", "5. days", "1 day x", "P7D", "7 days -", "1 microsecond"],
)  # fmt: skip
def test_text_that_is_not_a_duration_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="horizon="):
        duration_ms(text, option="horizon")


@pytest.mark.parametrize("text", ["0.5 milliseconds", "0.0001 seconds", "0.3333 s"])
def test_text_finer_than_a_millisecond_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="finer than a millisecond"):
        duration_ms(text, option="horizon")


@pytest.mark.parametrize(
    "text", ["522858 weeks", "99999999999999999999 days", "9" * 400 + " days", "9" * 5000 + " ms"]
)
def test_durations_that_are_too_long_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        duration_ms(text, option="horizon")


def test_the_longest_duration_is_ten_thousand_years() -> None:
    assert duration_ms(f"{MAX_DURATION_MS} ms", option="horizon") == MAX_DURATION_MS
    with pytest.raises(ConfigError, match="ten thousand years"):
        duration_ms(f"{MAX_DURATION_MS + 1} ms", option="horizon")


def test_a_timedelta_must_be_of_whole_positive_milliseconds() -> None:
    assert duration_ms(timedelta(days=7), option="h") == 604_800_000
    assert duration_ms(timedelta(0), option="h") == 0
    for wrong in (timedelta(microseconds=1), timedelta(milliseconds=-1), timedelta.max):
        with pytest.raises(ConfigError, match="h="):
            duration_ms(wrong, option="h")


@pytest.mark.parametrize("value", [7, 7.0, None, True, b"7 days", ["7 days"]])
def test_other_types_are_rejected(value: object) -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        duration_ms(value, option="horizon")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ms", "wanted"),
    [(129_600_000, "36 hours"), (604_800_000, "1 week"), (1, "1 millisecond"),
     (0, "0 milliseconds"), (61_000, "61 seconds"), (60_000, "1 minute")],
)  # fmt: skip
def test_durations_are_formatted_in_the_largest_whole_unit(ms: int, wanted: str) -> None:
    assert format_ms(ms) == wanted


@given(st.integers(0, MAX_DURATION_MS))
def test_formatted_durations_are_read_back(ms: int) -> None:
    assert duration_ms(format_ms(ms), option="horizon") == ms


@given(st.lists(st.tuples(st.integers(0, 9_999), st.sampled_from(sorted(MS_PER_UNIT))), min_size=1))
def test_terms_add_up(terms: list[tuple[int, str]]) -> None:
    text = " ".join(f"{number} {unit}s" for number, unit in terms)
    wanted_ms = sum(number * MS_PER_UNIT[unit] for number, unit in terms)
    if wanted_ms <= MAX_DURATION_MS:
        assert duration_ms(text, option="horizon") == wanted_ms
