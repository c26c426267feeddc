"""The oracle over a real catalog: segments, sidecars and views on files and RocksDB."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dedup.catalog.cache import LocalCache
from dedup.catalog.open_views import OpenViews
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.core.policy import Policy
from dedup.core.segment import SegmentRef
from tests.support.catalog import HASH_KEY, QUERY, RUN, SECRET, Bench
from tests.support.shard_driver import Driver, Rec
from tests.support.traces import batches, policies, traces

BUDGETS = st.sampled_from([0, 64, 400])


@dataclass
class CatalogDriver(Driver):
    """A driver whose every attempt has its own store, as Spark's tasks have."""

    bench: Bench | None = None
    hash_key: bytes = HASH_KEY
    attempts: int = 0

    def __post_init__(self) -> None:
        assert self.bench is not None
        self.cache: LocalCache = self.bench.cache()
        self.views = OpenViews(4)

    def attempt(self) -> ShardStore:
        assert self.bench is not None
        self.attempts += 1
        return ShardStore(
            ShardFiles(self.bench.root, self.cache, QUERY, self.shard, SECRET),
            Attempt(self.batch, RUN, self.attempts),
            self.views,
        )

    def ids_of(self, segment: SegmentRef) -> list[bytes]:
        entries = self.attempt().read_segment(segment)
        assert len(entries) == segment.count
        assert all(segment.start_ms <= t < segment.end_ms for t in entries.times_ms)
        return list(entries.keys)

    def lives(self, segment: SegmentRef) -> bool:
        assert self.bench is not None
        return all(
            self.bench.file(segment, suffix, self.shard).exists() for suffix in (".sst", ".filter")
        )


def run(policy: Policy, trace: list[list[Rec]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        driver = CatalogDriver(policy, bench=Bench(Path(folder)))
        now_ms = 0
        for recs in trace:
            if data.draw(st.integers(0, 5)) == 0:
                driver.retune(
                    bucket_ms=data.draw(st.integers(1, policy.horizon_ms)),
                    state_budget_bytes=data.draw(BUDGETS),
                    max_filter_state_bytes=data.draw(BUDGETS),
                )
            now_ms += data.draw(st.sampled_from([10, 100, 400]))
            driver.feed(recs, now_ms)


@traces(25)
@given(policies(budgets=BUDGETS), batches(), st.data())
def test_a_real_catalog_matches_the_oracle_in_event_time(
    policy: Policy, trace: list[list[Rec]], data: st.DataObject
) -> None:
    run(policy, trace, data)


@traces(15)
@given(policies(budgets=BUDGETS, stable=True), batches(), st.data())
def test_a_real_catalog_matches_the_oracle_with_stable_timestamps(
    policy: Policy, trace: list[list[Rec]], data: st.DataObject
) -> None:
    own: dict[bytes, int | None] = {}
    stable = [
        [r if r.id is None else replace(r, time_ms=own.setdefault(r.id, r.time_ms)) for r in recs]
        for recs in trace
    ]
    run(policy, stable, data)
