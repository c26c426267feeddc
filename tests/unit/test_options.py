"""Options that can never work are rejected at once, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import Parameter, signature
from typing import Any, get_args, get_type_hints

import pytest

from dedup import dedup_by_id, dedup_by_sequence
from dedup.core.option import REQUIRED, Option
from dedup.errors import ConfigError
from dedup.spark.executor.task import Layout, partitions_of
from dedup.spark.machine import shuffle_partitions
from dedup.spark.options import BY_ID, BY_SEQUENCE, Options, SequenceOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": "0 days"}, "horizon='0 days' must be at least a millisecond"),
        ({"horizon": None}, "horizon=None is not a duration"),
        ({"bucket_length": "2 days"},
         r"bucket_length='2 days' must be .* at most the horizon \(1 day\): an ID may occur"),
        ({"bucket_length": "0 seconds"}, "bucket_length='0 seconds' must be at least a milliseco"),
        ({"bucket_length": "1 second"}, "more than 1000 buckets per horizon .1 day., and every"),
        ({"buckets": 7.5}, "buckets=7.5 must be a whole number"),
        ({"buckets": True}, "buckets=True must be a whole number"),
        ({"buckets": 0}, "buckets=0 must be a whole number from 1 to 1000; 8 is best"),
        ({"buckets": 1001}, "buckets=1001 must be a whole number from 1 to 1000"),
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
        ({"state_budget_bytes": 1000}, "must be a whole number of at least 16384"),
        ({"cache_bytes": "1g"}, "cache_bytes='1g' must be a whole number"),
        ({"cache_bytes": 0}, "cache_bytes=0 must be a whole number of at least 1"),
        ({"max_shard_batch_bytes": 0}, "max_shard_batch_bytes=0 must be a whole number"),
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
        ({"accept_changed_id": True}, "accept_changed_id=True must be text"),
        *(
            ({"timestamp": "ts", name: "soon"}, f"{name}='soon' is not a duration")
            for name, option in BY_ID.items()
            if option.metavar == "DURATION"
        ),
    ],
)  # fmt: skip
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dedup_by_id("id", **({"horizon": "1 day"} | options))


def test_lateness_defaults() -> None:
    def lateness_ms(**options: Any) -> int:
        return dedup_by_id("id", timestamp="ts", **options).options.policy().lateness_ms

    assert lateness_ms(horizon="7 days") == 3_600_000
    assert lateness_ms(horizon="10 minutes") == 600_000
    assert lateness_ms(horizon="7 days", stable_timestamps=True) == 7 * 86_400_000
    assert dedup_by_id("id", horizon="1 day").options.policy().lateness_ms == 0
    jump = dedup_by_id("id", horizon="1 day", accept_clock_jump=True).options.policy()
    assert jump.accept_clock_jump


def test_the_number_of_shuffle_partitions() -> None:
    assert [shuffle_partitions(text) for text in ("8", " 200 ", "1")] == [8, 200, 1]
    for unknown in ("auto", "AUTO", "", "  ", "0", "-1", "1.5", "8 cores", None):
        assert shuffle_partitions(unknown) is None


@pytest.mark.parametrize(
    ("pinned", "asked", "shards", "partitions"),
    [("4", "auto", None, 4), (None, "8", 2, 8), (None, "auto", 2, 2), ("", " ", None, 200)],
)
def test_a_task_takes_the_number_that_it_knows(
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


@pytest.mark.parametrize(
    ("function", "declared", "made"),
    [(dedup_by_id, BY_ID, Options), (dedup_by_sequence, BY_SEQUENCE, SequenceOptions)],
)
def test_signatures_are_those_that_the_declarations_say(
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
