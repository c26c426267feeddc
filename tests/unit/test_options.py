"""Options that can never work are rejected at once, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import dedup
from dedup import dedup_by_id, dedup_by_sequence
from dedup.errors import ConfigError
from dedup.spark.executor.layout import Layout
from dedup.spark.executor.task import partitions_of
from dedup.spark.machine import shuffle_partitions
from dedup.spark.options import BY_ID, BY_SEQUENCE, Options, SequenceOptions
from dedup.values.option import REQUIRED, Option

PAGE = Path(dedup.__file__).with_name("OPTIONS.md")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": "0 days"}, "horizon='0 days' must be at least a millisecond"),
        ({"horizon": None}, "horizon=None is not a duration"),
        ({"bucket_length": "2 days"},
         r"bucket_length='2 days' must be at most the horizon \(1 day\): an ID may occur"),
        ({"bucket_length": "0 seconds"}, "bucket_length='0 seconds' must be at least a milliseco"),
        ({"bucket_length": "1 second"}, "more than 1000 buckets per horizon .1 day., and every"),
        ({"late": "maybe"}, "late='maybe' must be one of emit, drop"),
        ({"null_ids": "skip"}, "null_ids='skip' must be one of emit, drop, error"),
        ({"null_timestamps": "skip"},
         "null_timestamps='skip' must be one of error, now, emit, drop"),
        ({"fpr": "0.01"}, "fpr='0.01' must be a number from 1e-06"),
        ({"fpr": None}, "fpr=None must be a number from 1e-06"),
        ({"fpr": 1e-20}, "fpr=1e-20 must be a number from 1e-06"),
        ({"fpr": 1.0}, "fpr=1.0 must be a number from 1e-06"),
        ({"shards": "4"}, "shards='4' must be a whole number"),
        ({"shards": 0}, "shards=0 must be a whole number of at least 1"),
        ({"state_budget_bytes": 1000}, "state_budget_bytes=1000 must be .* of at least 16.0 KiB"),
        ({"state_budget_bytes": True}, "state_budget_bytes=True must be a number of bytes"),
        ({"filter_state_bytes": 0.5}, "filter_state_bytes=0.5 must be a number of bytes, or text"),
        ({"filter_state_bytes": "much"}, "filter_state_bytes='much' must be .* of at least"),
        ({"cache_bytes": "1 x"}, "cache_bytes='1 x' must be a number of bytes"),
        ({"idle_timeout": "forever"}, "idle_timeout='forever' is not a duration"),
        ({"cache_bytes": 0}, "cache_bytes=0 must be a number of bytes, or text .* of at least 1 B"),
        ({"max_shard_batch_bytes": 0}, "max_shard_batch_bytes=0 must be a number of bytes"),
        ({"stable_timestamps": "false", "timestamp": "ts"}, "must be true or false"),
        ({"stable_timestamps": True}, "stable_timestamps=True needs a timestamp column"),
        ({"lateness": "1 hour"}, "lateness='1 hour' needs a timestamp column; without"),
        ({"source_partition": "src"}, "source_partition='src' needs a timestamp column"),
        ({"heartbeat": "beat"}, "heartbeat='beat' needs a timestamp column"),
        ({"window_delay": "1 hour"}, "window_delay='1 hour' needs a timestamp column"),
        ({"timestamp": "ts", "window_delay": "1 hour", "verdict": "verdict"},
         """window_delay='1 hour' needs late="drop": late="emit" passes"""),
        ({"catalog": ""}, "the catalog's path is empty"),
        ({"verdict": 5}, "verdict=5 must be text that is not empty"),
        ({"verdict": ""}, "verdict='' must be text that is not empty"),
        ({"metrics": ""}, "metrics='' must be a name"),
        ({"metrics": None}, "metrics=None must be a name"),
        ({"order_by": {"n", "src"}}, "order_by={'.*'} must be a list: a set"),
        ({"accept": True}, "accept=True must be a word that an error names, or 'clock-jump'"),
        ({"accept": ["clock-jump", "yes"]}, "accept='yes' must be a word that an error names"),
        *(
            ({"timestamp": "ts", name: "soon"}, f"{name}='soon' is not a duration")
            for name, option in BY_ID.items()
            if option.metavar == "DURATION"
        ),
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dedup_by_id("id", **({"horizon": "1 day"} | options))


def test_defaults_depend_on_the_horizon_and_options_reach_the_policy() -> None:
    def lateness_ms(**options: Any) -> int:
        return dedup_by_id("id", timestamp="ts", **options).options.policy().lateness_ms

    assert lateness_ms(horizon="7 days") == 3_600_000
    assert lateness_ms(horizon="10 minutes") == 600_000
    assert lateness_ms(horizon="7 days", stable_timestamps=True) == 7 * 86_400_000
    assert dedup_by_id("id", horizon="1 day").options.policy().lateness_ms == 0
    sized = dedup_by_id("id", horizon="1 day", state_budget_bytes="64 KiB").options.policy()
    assert (sized.state_budget_bytes, sized.bucket_ms) == (65_536, 3 * 3_600_000)
    assert (sized.max_filter_state_bytes, sized.filters_by_load) == (3 << 19, True)
    assert sized.idle_timeout_ms == 600_000
    for never in (None, "never"):
        waits = dedup_by_id("id", horizon="1 day", idle_timeout=never).options.policy()
        assert waits.idle_timeout_ms is None
    bound = dedup_by_id("id", horizon="1 day", filter_state_bytes="2 MiB").options.policy()
    assert (bound.max_filter_state_bytes, bound.filters_by_load) == (2 << 20, False)
    jump = dedup_by_id("id", horizon="1 day", accept="clock-jump").options.policy()
    assert jump.accept_clock_jump


def test_only_a_positive_number_of_shuffle_partitions_is_read() -> None:
    assert [shuffle_partitions(text) for text in ("8", " 200 ", "1")] == [8, 200, 1]
    for unknown in ("auto", "AUTO", "", "  ", "0", "-1", "1.5", "8 cores", None):
        assert shuffle_partitions(unknown) is None


@pytest.mark.parametrize(
    ("pinned", "asked", "shards", "partitions"),
    [("4", "auto", None, 4), (None, "8", 2, 8), (None, "auto", 2, 2), ("", " ", None, 200)],
)
def test_a_task_takes_partitions_from_the_checkpoint_then_the_setting_then_shards(
    pinned: str | None, asked: str, shards: int | None, partitions: int
) -> None:
    settings = {
        "spark.sql.streaming.internal.stateStore.partitions": pinned,
        "spark.sql.shuffle.partitions": asked,
    }
    assert partitions_of(settings.get, shards) == partitions


def test_the_repr_of_a_layout_shows_no_key() -> None:
    made = Layout.of("query", (7,), bytes(16))
    assert repr(made) == "Layout(slot_keys=(7,))"


@pytest.mark.parametrize("declared", [BY_ID, BY_SEQUENCE], ids=["by_id", "by_sequence"])
def test_the_page_has_the_options_as_they_are_declared(declared: Mapping[str, Option]) -> None:
    rows = ["| option | takes | default | meaning |", "|---|---|---|---|"]
    for option in declared.values():
        default = "" if option.default in (None, ()) else f"`{option.default!r}`"
        default = "required" if option.default is REQUIRED else default
        takes = option.metavar.replace("|", ", ")
        rows.append(f"| `{option.name}` | {takes} | {default} | {option.help} |")
    table = "\n".join(rows)
    assert table in PAGE.read_text(), f"Put this into {PAGE}:\n{table}"


@pytest.mark.parametrize(
    ("function", "declared", "made"),
    [(dedup_by_id, BY_ID, Options), (dedup_by_sequence, BY_SEQUENCE, SequenceOptions)],
)
def test_signatures_match_the_declared_options(
    function: Callable[..., Any], declared: Mapping[str, Option], made: type
) -> None:
    shown = {
        name: REQUIRED if parameter.default is Parameter.empty else parameter.default
        for name, parameter in signature(function).parameters.items()
    }
    assert shown == {option.name: option.default for option in declared.values()}
    assert list(shown) == list(declared)
    assert shown.keys() == {field.name for field in fields(made) if field.init}
    for name, hint in get_type_hints(function).items():
        choices = [each for each in get_args(hint) if isinstance(each, str)]
        if choices:
            assert "|".join(choices) == declared[name].metavar, name
