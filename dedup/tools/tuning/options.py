"""What `tune` is asked, and what that demands of a query."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from dedup.catalog.certificate import certificate_of
from dedup.core.option import Option, duration, whole
from dedup.core.policy import default_lateness_ms
from dedup.errors import ConfigError
from dedup.spark.machine import machine_cores
from dedup.spark.options import BY_ID
from dedup.tools.repair.opening import Checkpoint, Where, open_root, read_checkpoint
from dedup.tools.tuning.demand import Demand, Sizing
from dedup.tools.tuning.from_query import of_batches, of_states
from dedup.tools.tuning.load import UUID_BYTES
from dedup.tools.tuning.sample import Sample, of_sample
from dedup.tools.watch.query_log import read_logs

_COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmbt]?)", re.IGNORECASE)
_BATCH = Option("batch", duration(1))
OPTIONS = (
    *(BY_ID[name] for name in ("late", "shards", "buckets", "state_budget_bytes", "fpr")),
    Option("id_bytes", whole()),
    Option("cores", whole()),
)
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What is to be sized: a load, from one of several places, and what the query has now.

    What is given overrules what sample, log or catalog tell.

    Parameters
    ----------
    ids_per_day : str or None
        Such as ``20M``.
    sample : callable or None
        Returns the records to measure, as `read_sample` does, when it is their turn.
    log, catalog
        Folder of metrics logs; catalog of a query. At most one of the three is given.
    checkpoint
        Of `catalog`: its folder, or what was read there.
    query : str or None
        Which of the log's.
    horizon, lateness, batch : str or None
        Durations.
    duplicate_share : float or None
        Share of records that repeat an ID.
    id_bytes, shards, cores : int or None
    buckets, fpr, state_budget_bytes
        What the query has now; None: the operator's default.
    stable_timestamps : bool
    late : str or None
        ``"emit"`` or ``"drop"``; None: what a catalog tells, else ``"emit"``.

    Raises
    ------
    ConfigError
        Where they contradict each other, or one cannot work.
    """

    ids_per_day: str | None = None
    sample: Callable[[], Sample] | None = None
    log: str | None = None
    catalog: Where | None = None
    checkpoint: Checkpoint | None = None
    query: str | None = None
    horizon: str | None = None
    lateness: str | None = None
    batch: str | None = None
    duplicate_share: float | None = None
    id_bytes: int | None = None
    shards: int | None = None
    cores: int | None = None
    buckets: int | None = None
    fpr: float | None = None
    state_budget_bytes: int | None = None
    stable_timestamps: bool = False
    late: str | None = None

    def __post_init__(self) -> None:
        given = [n for n in ("sample", "log", "catalog") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ConfigError(f"--{given[0]} and --{given[1]} exclude each other; give one.")
        if not given and self.ids_per_day is None:
            raise ConfigError(
                "Say what is asked of the query: --ids-per-day 20M, or --sample FILES --id COL, or "
                "--log DIR, or --catalog ROOT --checkpoint DIR."
            )
        if self.catalog is not None and self.checkpoint is None:
            raise ConfigError("--catalog needs --checkpoint: only it knows the query's state.")
        if self.horizon is None and self.log is None and self.catalog is None:
            raise ConfigError("--horizon is missing: how long an ID is remembered, '7 days'.")
        for fixed in ("log", "catalog"):
            if getattr(self, fixed) is not None and self.shards is not None:
                raise ConfigError(
                    f"--shards and --{fixed} exclude each other: the {fixed} tells the shards, "
                    "which are fixed from the query's beginning."
                )
        for option in OPTIONS:
            option.check_flag(getattr(self, option.name))
        _load(self)

    def sizing(self) -> dict[str, Any]:
        """Options of `Sizing` that were given."""
        given = {name: getattr(self, name) for name in asdict(Sizing())}
        return {name: value for name, value in given.items() if value is not None}


class _Load(NamedTuple):
    """What was given as text, as numbers; None where it was not."""

    ids_per_day: float | None
    horizon_ms: int | None
    lateness_ms: int | None
    batch_ms: int | None


def _load(asked: TuneOptions) -> _Load:
    return _Load(
        None if asked.ids_per_day is None else count(asked.ids_per_day, "--ids-per-day"),
        BY_ID["horizon"].check_flag(asked.horizon),
        BY_ID["lateness"].check_flag(asked.lateness),
        _BATCH.check_flag(asked.batch),
    )


def demand_of(asked: TuneOptions) -> Demand:
    """What the query is asked for: from where the user said, overruled by what they gave."""
    ids_per_day, horizon_ms, lateness_ms, batch_ms = _load(asked)
    base = Demand(
        origin="as given",
        ids_per_day=ids_per_day or 0.0,
        horizon_ms=horizon_ms or 1,
        lateness_ms=0,
        shards=asked.shards or asked.cores or machine_cores(),
        cores=asked.cores or machine_cores(),
        cores_given=asked.cores is not None,
        key_bytes=asked.id_bytes or UUID_BYTES,
        stable_timestamps=asked.stable_timestamps,
        today=Sizing(**asked.sizing()),
    )
    usual_ms = default_lateness_ms(base.horizon_ms, stable_timestamps=base.stable_timestamps)
    base = replace(base, lateness_ms=usual_ms if lateness_ms is None else lateness_ms)
    found = _found(base, asked)
    given: dict[str, Any] = {
        "horizon_ms": horizon_ms,
        "lateness_ms": lateness_ms,
        "batch_ms": batch_ms,
        "batch_known": True if batch_ms else None,
        "duplicates": asked.duplicate_share,
        "key_bytes": asked.id_bytes,
        "late": asked.late,
        "ids_per_day": base.ids_per_day or None,
        "today": replace(found.today or Sizing(), **asked.sizing()),
    }
    if horizon_ms or lateness_ms is not None or base.ids_per_day:
        # Of another load than the query's own: nothing to hold against the trial.
        found = replace(found, seen_live=None, seen_segments=None)
    return replace(found, **{name: value for name, value in given.items() if value is not None})


def _found(base: Demand, asked: TuneOptions) -> Demand:
    if asked.sample is not None:
        return of_sample(base, asked.sample(), base.ids_per_day or None)
    if asked.log is not None:
        logs = read_logs(asked.log)
        chosen = [log for log in logs if asked.query in (None, log.query_id, log.name)]
        if len(chosen) != 1:
            names = ", ".join(sorted(log.name or log.query_id for log in logs)) or "no query"
            which = f"not of {asked.query}" if asked.query and not chosen else "say which: --query"
            raise ConfigError(f"--log {asked.log} tells of {names}; {which}.")
        log, name = chosen[0], chosen[0].name or chosen[0].query_id
        if log.batches and not log.of_ids:
            raise ConfigError(
                f"Query {name} is one of dedup_by_sequence, which has no filters to be sized."
            )
        return of_batches(base, name, log.of_ids)
    if asked.catalog is not None and asked.checkpoint is not None:
        root = open_root(asked.catalog)
        snapshot = read_checkpoint(root, asked.checkpoint)
        fixed = certificate_of(root, snapshot.query_id)
        base = replace(
            base,
            event_time=fixed.timestamp_source != "processing time",
            stable_timestamps=fixed.stable_timestamps,
        )
        return of_states(base, snapshot.query_id, snapshot.states)
    return base


def count(text: str, option: str) -> float:
    """A number such as ``20M``, ``1.5b`` or ``2000000``.

    Raises
    ------
    ConfigError
        When it is none.
    """
    found = _COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if found is None:
        raise ConfigError(f"{option} {text} is not a number such as 20M, 1.5B or 300000.")
    return float(found.group(1)) * _TIMES[found.group(2).lower()]
