"""All that the catalog does to an object store, each with the answer that it must give."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dedup.catalog.accepted_loss import read_accepted_loss
from dedup.catalog.backup import check_backup, read_adopted, read_backup, write_adopted
from dedup.catalog.backup import write_backup as put_backup
from dedup.catalog.certificate import load_certificate
from dedup.catalog.compatibility import create_or_check
from dedup.catalog.gc.housekeeping import housekeep
from dedup.catalog.gc.lineage import Lineage, Run
from dedup.catalog.gc.pending_lists import read_pending_list
from dedup.catalog.gc.runs import list_runs, mark_through, read_lineage, write_lineage
from dedup.catalog.layout import catalog_files, certificate_path, segment_name, shard_path
from dedup.catalog.store import ShardStore
from dedup.core.clocks import Clocks
from dedup.core.keys import Keys
from dedup.core.manifest import Manifest
from dedup.core.policy import Policy
from dedup.core.records import Epoch
from dedup.core.segment import SegmentRef
from dedup.core.state import ShardState
from dedup.storage.root import Root
from dedup.tools.repair.segment_check import verify_segment, write_accepted_loss
from tests.support.catalog import QUERY, Bench, Content, certificate, fixed, knows, write

MADE = fixed(300)
STRANGE = fixed(300, prefix="other")
#: Any expired orphan may go; time moves on by a day, because the store's own clock stamps objects.
POLICY = Policy(horizon_ms=1000, bucket_ms=1000, keep_expired_ms=0, retain_epochs=10)
DAY_MS = 86_400_000
#: Of orphans only the names matter.
NO_SEGMENT = b"bytes"
CERTIFICATE = certificate()


class World:
    """A catalog that is reached through the proxy, and one way past it."""

    def __init__(self, folder: Path, flaky: Root, sound: Root) -> None:
        self.bench, self.flaky, self.sound = Bench(folder), flaky, sound

    def store(self) -> ShardStore:
        """As a new attempt has it, through the proxy."""
        return self.bench.store(root=self.flaky)

    def elsewhere(self) -> ShardStore:
        """As a machine has it that has never read anything; through the proxy."""
        self.bench.lose_cache()
        return self.store()

    def written(self) -> SegmentRef:
        return write(self.bench.store(root=self.sound), MADE)

    def names(self) -> list[str]:
        return [found.name for found in catalog_files(self.sound)]

    def whole(self) -> bool:
        """Nothing half-written has the name of a segment."""
        files = catalog_files(self.sound, QUERY)
        segments = [file.parsed.segment for file in files if file.parsed.kind == "segment"]
        self.sound.create_bytes(certificate_path(QUERY), certificate().to_bytes())
        return all(verify_segment(self.sound, QUERY, 0, name or "").ok for name in segments)


@dataclass
class Case:
    """What is done, any number of times, and the answer that it gives each time.

    `always` holds as well where it fails. `by_listing`: it may tell less than there is where the
    store answers every listing and every reading with nothing.
    """

    act: Callable[[], Any]
    answer: Any
    always: Callable[[], bool] = lambda: True
    by_listing: bool = False


# --- writing


def write_segment(world: World) -> Case:
    def act() -> Any:
        seg = write(world.store(), MADE)
        world.bench.lose_cache()
        reader = world.bench.store(root=world.sound)
        found = reader.lookup(seg, MADE.keys, MADE.hashes).tolist()
        return found, knows(reader, seg, MADE)

    return Case(act, (MADE.times_ms.tolist(), True), world.whole)


def spill_pending(world: World) -> Case:
    names = [segment_name(1, "run", 1, nth) for nth in range(5)]
    return Case(
        lambda: read_pending_list(world.sound, QUERY, 0, world.store().spill_pending(names)), names
    )


def create_certificate(world: World) -> Case:
    def act() -> Any:
        return create_or_check(world.flaky, CERTIFICATE), load_certificate(world.sound, QUERY)

    return Case(act, (CERTIFICATE, CERTIFICATE))


def write_backup(world: World) -> Case:
    put_backup(world.sound, QUERY, 0, ShardState(epoch=3))

    def act() -> Any:
        put_backup(world.flaky, QUERY, 0, ShardState(epoch=5))
        return check_backup(world.sound, QUERY, 0).epoch

    # One that is there is replaced whole, or not at all.
    return Case(act, 5, lambda: check_backup(world.sound, QUERY, 0).epoch in (3, 5))


def accept_loss(world: World) -> Case:
    create_or_check(world.sound, CERTIFICATE)
    seg = world.written()

    def act() -> Any:
        write_accepted_loss(world.flaky, QUERY, 0, seg.name)
        # The bucket is noted where the segment can be read.
        found = read_accepted_loss(world.sound, QUERY, 0, seg)
        return found and found.segment

    return Case(act, seg.name)


def begin_run(world: World) -> Case:
    lineage = Lineage((Run("a", 0), Run("b", 3)))

    def act() -> Any:
        write_lineage(world.flaky, QUERY, lineage)
        return read_lineage(world.sound, QUERY, Run("b", 3))

    return Case(act, lineage)


def mark_run(world: World) -> Case:
    write_lineage(world.sound, QUERY, Lineage((Run("a", 0),)))
    mark_through(world.sound, QUERY, Run("a", 0), 3)

    def act() -> Any:
        mark_through(world.flaky, QUERY, Run("a", 0), 7)
        return list_runs(world.sound, QUERY)

    # The old mark goes when the new one is there.
    return Case(
        act, [Run("a", 0, 7)], lambda: list_runs(world.sound, QUERY)[0].through_epoch in (3, 7)
    )


# --- deleting


def delete_segment(world: World) -> Case:
    kept, gone = world.written(), world.written()

    def act() -> Any:
        world.store().delete([gone.name])
        return world.names()

    return Case(act, _files(kept), lambda: set(_files(kept)) <= set(world.names()))


def delete_pending(world: World) -> Case:
    pending_list = world.bench.store(root=world.sound).spill_pending([world.written().name])

    def act() -> Any:
        world.store().delete_pending(pending_list)
        return world.names()

    return Case(act, [], by_listing=True)


def sweep(world: World) -> Case:
    orphan, young = (shard_path(QUERY, 0, segment_name(e, "a", 7, 0) + ".sst") for e in (4, 49))
    for name in (orphan, young):
        world.sound.put_bytes(name, NO_SEGMENT)

    def act() -> Any:
        housekeep(world.flaky, QUERY, _visit(), _state("a"), POLICY)
        return [name for name in world.names() if name.endswith(".sst")]

    return Case(act, [young], lambda: young in world.names(), by_listing=True)


def sweep_of_a_copied_checkpoint(world: World) -> Case:
    """Another run continued from the same state: an orphan here may be alive there."""
    orphan = shard_path(QUERY, 0, segment_name(4, "a", 7, 0) + ".sst")
    world.sound.put_bytes(orphan, NO_SEGMENT)
    write_lineage(world.sound, QUERY, Lineage((Run("a", 0), Run("other", 3))))
    mark_through(world.sound, QUERY, Run("other", 3), 5)

    def act() -> Any:
        state, deleted = housekeep(world.flaky, QUERY, _visit(), _state("a"), POLICY)
        return state.branches, deleted, orphan in world.names()

    return Case(act, (1, 0, True), lambda: orphan in world.names(), by_listing=True)


# --- reading


def probe_sidecar(world: World) -> Case:
    seg = world.written()
    hashes = np.sort(np.concatenate([MADE.hashes, STRANGE.hashes]))
    expected = world.bench.store(root=world.sound).may_hold(seg, hashes).tolist()
    assert 300 <= sum(expected) < 330
    return Case(lambda: world.elsewhere().may_hold(seg, hashes).tolist(), expected)


def look_up(world: World) -> Case:
    seg = world.written()
    both = Content(
        Keys.concat([MADE.keys, STRANGE.keys]),
        np.concatenate([MADE.hashes, STRANGE.hashes]),
        MADE.times_ms,
    )
    expected = world.bench.store(root=world.sound).lookup(seg, both.keys, both.hashes).tolist()
    assert expected[:300] == MADE.times_ms.tolist()
    return Case(lambda: world.elsewhere().lookup(seg, both.keys, both.hashes).tolist(), expected)


def read_segment(world: World) -> Case:
    seg = world.written()

    def act() -> Any:
        entries = world.elsewhere().read_segment(seg)
        return dict(zip(entries.keys, entries.times_ms.tolist(), strict=True))

    return Case(act, dict(zip(MADE.keys, MADE.times_ms.tolist(), strict=True)))


def read_certificate(world: World) -> Case:
    create_or_check(world.sound, CERTIFICATE)
    return Case(lambda: load_certificate(world.flaky, QUERY), CERTIFICATE)


def look_for_a_certificate(world: World) -> Case:
    return Case(lambda: load_certificate(world.flaky, QUERY), None)


def read_what_was_adopted(world: World) -> Case:
    for shard in (0, 1):
        write_adopted(world.sound, QUERY, shard, ShardState(epoch=shard))
    return Case(lambda: _epoch(read_adopted(world.flaky, QUERY, 1)), 1)


def read_advice(world: World) -> Case:
    put_backup(world.sound, QUERY, 0, ShardState(epoch=3))
    return Case(lambda: _epoch(read_backup(world.flaky, QUERY, 0)), 3, by_listing=True)


def ask_for_consent(world: World) -> Case:
    create_or_check(world.sound, CERTIFICATE)
    lost, damaged = world.written(), world.written()
    write_accepted_loss(world.sound, QUERY, 0, lost.name)
    return Case(
        lambda: [world.store().loss_accepted(seg) for seg in (lost, damaged)], [True, False]
    )


def read_runs(world: World) -> Case:
    lineage = Lineage((Run("a", 0), Run("b", 3)))
    write_lineage(world.sound, QUERY, lineage)
    mark_through(world.sound, QUERY, Run("a", 0), 2)

    def act() -> Any:
        return list_runs(world.flaky, QUERY), read_lineage(world.flaky, QUERY, Run("b", 3))

    return Case(act, ([Run("a", 0, 2), Run("b", 3)], lineage), by_listing=True)


def list_files(world: World) -> Case:
    create_or_check(world.sound, CERTIFICATE)
    world.written()

    def act() -> Any:
        return [found.name for found in world.flaky.list(QUERY)]

    return Case(act, world.names(), by_listing=True)


WRITES = (
    write_segment, spill_pending, create_certificate, write_backup, accept_loss, begin_run,
    mark_run, delete_segment, delete_pending, sweep, sweep_of_a_copied_checkpoint,
)  # fmt: skip
READS = (
    probe_sidecar, look_up, read_segment, read_certificate, look_for_a_certificate,
    read_what_was_adopted, read_advice, ask_for_consent, read_runs, list_files,
)  # fmt: skip


def _files(seg: SegmentRef) -> list[str]:
    return [shard_path(QUERY, 0, seg.name + suffix) for suffix in (".filter", ".sst")]


def _epoch(state: ShardState | None) -> int | None:
    return None if state is None else state.epoch


def _visit() -> Epoch:
    now_ms = time.time_ns() // 1_000_000 + DAY_MS
    return Epoch(number=50, run_id="b", now_ms=now_ms, worker_now_ms=now_ms, shard=0, hash_key=b"")


def _state(run_id: str) -> ShardState:
    return ShardState(epoch=49, clocks=Clocks(run_id=run_id), manifest=Manifest(), run_began=0)
