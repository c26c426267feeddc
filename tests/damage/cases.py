"""Readers of every kind of file, each judged against the truth.

A reader returns "harmless" (all is right), "healed" (right, rebuilt from another source) or
"left out" (less is used, nothing is wrong), or raises one of our errors. Any other end is wrong.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dedup.catalog.accepted_loss import read_accepted_loss
from dedup.catalog.backup import read_adopted, read_backup
from dedup.catalog.gc.pending_lists import read_pending_list
from dedup.catalog.gc.runs import read_lineage
from dedup.catalog.layout import shard_path, successor_path
from dedup.catalog.successor import Successor, read_successor, write_successor
from dedup.core.ports import ABSENT_MS
from dedup.core.segment import SegmentRef
from dedup.core.state import ShardState
from dedup.errors import SegmentDamaged
from dedup.spark.executor import layout, task
from dedup.spark.plan import TimeSource
from tests.damage.harm import Harm, Outcomes, Wrong, some
from tests.damage.world import EPOCH, OLD_RUN, OTHER_QUERY, QUERY, RUN, World, state_content
from tests.support.catalog import Content


@dataclass(frozen=True)
class Case:
    """A kind of file: its place, files to swap it with, and its reader."""

    kind: str
    path: Path
    others: Mapping[str, bytes]
    read: Callable[[], str]
    #: Only white space around it may differ.
    is_json: bool = False

    def harms(self, rng: random.Random, per_kind: int | None) -> Iterator[Harm]:
        """Do harm after harm to the file, and put it right again."""
        for harm in some(self.path.read_bytes(), self.others, rng, per_kind):
            with harmed(self.path, harm):
                yield harm

    def run(self, outcomes: Outcomes, rng: random.Random, per_kind: int | None) -> None:
        """Read the file with each harm, and whole."""
        data = self.path.read_bytes()
        for harm in self.harms(rng, per_kind):
            outcome = outcomes.judge(self.kind, harm, self.read)
            if self.is_json and outcome == "harmless":
                same = harm.data is not None and harm.data.strip() == data.strip()
                need(same, f"{self.kind}, {harm} went unnoticed")
        if self.read() not in ("harmless", "healed"):
            raise Wrong(f"{self.kind} cannot be read when nothing is wrong with it")


@contextmanager
def harmed(path: Path, harm: Harm) -> Any:
    """The file with its damage; as a new file, because views hold links to the old one."""
    data = path.read_bytes()
    path.unlink()
    if harm.data is not None:
        path.write_bytes(harm.data)
    assert (path.read_bytes() if path.exists() else None) != data, f"{harm} changed nothing"
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(data)


def need(right: bool, what: object) -> None:
    if not right:
        raise Wrong(f"wrong answer: {what}")


# ---- the state row


def state_row_reader(world: World, data: Callable[[], bytes]) -> Callable[[], str]:
    state = world.states[0]
    wanted, pieces = state_content(state), {n: f.to_bytes() for n, f in state.filters.items()}

    def read() -> str:
        found = ShardState.from_bytes(data(), hash_key_id=world.certificate.hash_key_id)
        need(state_content(found) == wanted, "content of the state row")
        filters = {name: piece.to_bytes() for name, piece in found.filters.items()}
        need(filters.items() <= pieces.items(), "a filter of another segment")
        return "harmless" if filters == pieces else "left out"

    return read


# ---- small objects


def object_cases(world: World, stranger: World, closed: str = "closed-") -> list[Case]:
    """All that is neither segment nor sidecar; `stranger` is another query's catalog.

    The successor belongs to the query whose ID has ``closed`` in front: a closed query reads
    nothing else.
    """

    def case(
        kind: str, path: Callable[[World], str], read: Callable[[World], str], **siblings: str
    ) -> Case:
        mine = world.file(path(world)).read_bytes()
        named = {"another query's": stranger.file(path(stranger))}
        named |= {name: world.file(own) for name, own in siblings.items()}
        others = {name: data for name, file in named.items() if (data := file.read_bytes()) != mine}
        return Case(kind, world.file(path(world)), others, lambda: read(world), is_json=True)

    def in_shard(file: str, shard: int = 0) -> Callable[[World], str]:
        return lambda w: shard_path(w.query_id, shard, file)

    for one in (world, stranger):
        write_successor(one.root, _successor(one, closed))
    return [
        case("birth certificate", World.certificate_path, _read_certificate),
        case(
            "accepted_loss", lambda w: w.segment_path(0, 0, ".accepted-loss"), _read_accepted_loss,
            sibling=world.segment_path(0, 1, ".accepted-loss"),
        ),
        case(
            "pending_list", lambda w: w.pending_list_path(0), _read_pending_list,
            sibling=world.pending_list_path(0, 1), other_shard=world.pending_list_path(1),
        ),
        case(
            "manifest backup", in_shard("backup.json"), _read_backup,
            other_shard=in_shard("backup.json", 1)(world),
        ),
        case(
            "adopted.json", in_shard("adopted.json"), _read_adopted,
            other_shard=in_shard("adopted.json", 1)(world),
        ),
        case(
            "run lineage", lambda w: w.run_path(RUN), _read_lineage,
            older=world.run_path(OLD_RUN),
        ),
        case(
            "successor.json", lambda w: successor_path(closed + w.query_id),
            lambda w: _read_successor(w, closed),
        ),
    ]  # fmt: skip


def _successor(world: World, closed: str) -> Successor:
    query_id = closed + world.query_id
    return Successor(query_id, "root", "new", "old", rebuilt=True, epoch=world.seed)


def _read_successor(world: World, closed: str) -> str:
    made = _successor(world, closed)
    found = read_successor(world.root, made.query_id)
    gone = not world.file(successor_path(made.query_id)).exists()
    need(gone or found == made, "a query that is not closed")
    return "left out" if gone else "harmless"


def _read_certificate(world: World) -> str:
    """As a task reads it that has state."""
    layout._checked.clear()
    plan: Any = SimpleNamespace(
        root=world.root,
        id_columns=tuple((n, n, kind) for n, kind in world.certificate.id_columns),
        id_definitions=world.certificate.id_definitions,
        time=TimeSource(world.certificate.timestamp_source, world.certificate.timestamp_definition),
        accepted=(),
        policy=SimpleNamespace(stable_timestamps=False),
        shards=None,
        marked=False,
    )
    own = task.Task(world.query_id, RUN, EPOCH, 1, 2)
    made = layout.layout(plan, own, has_state=True)
    need(made.slot_keys == world.certificate.slot_keys, "slot keys of the certificate")
    return "harmless"


def _read_accepted_loss(world: World) -> str:
    segment = world.segment(0)
    found = read_accepted_loss(world.root, world.query_id, 0, segment)
    if found is None:  # without consent the query stops and explains how to give it
        there = world.file(world.segment_path(0, 0, ".accepted-loss")).exists()
        need(not there, "a missed accepted loss")
        return "left out"
    need((found.segment, found.start_ms) == (segment.name, segment.start_ms), found)
    return "harmless"


def _read_pending_list(world: World) -> str:
    name = world.states[0].manifest.pending_lists[0].name
    found = read_pending_list(world.root, world.query_id, 0, name)
    need(found in ([], world.pending_lists[name]), f"segments to delete: {found}")
    return "harmless" if found else "left out"


def _read_backup(world: World) -> str:
    found = read_backup(world.root, world.query_id, 0)
    return _same_memory(found, world.states[0]) if found else "left out"


def _read_adopted(world: World) -> str:
    found = read_adopted(world.root, world.query_id, 0)
    need(found is not None, "a shard that begins with nothing")
    assert found is not None
    return _same_memory(found, replace(world.states[0], epoch=-1))


def _same_memory(found: ShardState, wanted: ShardState) -> str:
    need(found.head() == replace(wanted, filters={}).head(), "memory of a shard")
    return "harmless"


def _read_lineage(world: World) -> str:
    found = read_lineage(world.root, world.query_id, world.lineages[RUN].runs[-1])
    need(found in (None, world.lineages[RUN]), found)
    return "harmless" if found else "left out"


# ---- segments, sidecars and their local copies


class SegmentReader:
    """Everything that is asked of a segment, by a process that has nothing open."""

    def __init__(self, world: World, *, keep_cache: bool = False) -> None:
        self.world, self.keep_cache = world, keep_cache
        self.segment = world.segment(0)
        self.made = world.truth[self.segment.name]
        self.strangers = world.content("never seen", 50, self.segment.start_ms)

    def __call__(self) -> str:
        if not self.keep_cache:
            shutil.rmtree(self.world.cache_folder, ignore_errors=True)
        store = self.world.store(0)
        refused: SegmentDamaged | None = None
        for ask in (self._filter, self._lookup, self._absent, self._all, self._some):
            try:
                ask(store, self.segment, self.made)
            except SegmentDamaged as exc:
                for part in (self.segment.name, "dedup catalog accept-loss", "Restore this file"):
                    need(part in str(exc), f"{exc} does not say {part}")
                refused = exc
        counters = store.counters
        self.world.close()
        if refused is not None:
            raise refused
        rebuilt = counters.views_rebuilt + counters.filters_rebuilt
        fetched = self.keep_cache and counters.views_built + counters.bytes_fetched
        return "healed" if rebuilt or fetched else "harmless"

    @staticmethod
    def _filter(store: Any, segment: SegmentRef, made: Content) -> None:
        need(store.may_hold(segment, np.sort(made.hashes)).all(), "a false negative")

    @staticmethod
    def _lookup(store: Any, segment: SegmentRef, made: Content) -> None:
        found = store.lookup(segment, made.keys, made.hashes)
        need(np.array_equal(found, made.times_ms), "times of IDs that are there")

    def _absent(self, store: Any, segment: SegmentRef, made: Content) -> None:
        found = store.lookup(segment, self.strangers.keys, self.strangers.hashes)
        need((found == ABSENT_MS).all(), "IDs that are not there were found")

    @staticmethod
    def _all(store: Any, segment: SegmentRef, made: Content) -> None:
        entries = store.read_segment(segment)
        found = dict(zip(entries.keys, entries.times_ms.tolist(), strict=True))
        need(found == dict(zip(made.keys, made.times_ms.tolist(), strict=True)), "entries")

    @staticmethod
    def _some(store: Any, segment: SegmentRef, made: Content) -> None:
        entries = store.read_segment(segment, 2, 1)
        wanted = sorted(k for k, h in zip(made.keys, made.hashes, strict=True) if int(h) >> 63)
        need(sorted(entries.keys) == wanted, "entries of a range of hashes")


def segment_cases(world: World, stranger: World) -> list[Case]:
    """The segment and its sidecar at the root."""
    where = "other storage" if world.remote else "a local root"
    return [
        Case(
            f"{kind} at {where}",
            world.file(world.segment_path(0, 0, suffix)),
            {
                "a sibling": world.file(world.segment_path(0, 1, suffix)).read_bytes(),
                "another shard's": world.file(world.segment_path(1, 0, suffix)).read_bytes(),
                "another query's": stranger.file(stranger.segment_path(0, 0, suffix)).read_bytes(),
            },
            SegmentReader(world),
        )
        for kind, suffix in (("segment", ".sst"), ("sidecar", ".filter"))
    ]


def cached_sidecar_case(world: World) -> Case:
    """The copy of a sidecar that was fetched to this machine."""
    assert world.remote
    reader = SegmentReader(world, keep_cache=True)
    siblings = {}
    for nth, shard in ((1, 0), (0, 1)):
        segment = world.segment(shard, nth)
        made = world.truth[segment.name]
        world.store(shard).may_hold(segment, np.sort(made.hashes))
        siblings[f"{shard}.{nth}"] = _cached(world, shard, segment, ".filter").read_bytes()
    reader()
    return Case(
        "sidecar in the local cache", _cached(world, 0, reader.segment, ".filter"), siblings, reader
    )


def rebuilt_sidecar_case(world: World) -> Case:
    """A sidecar that was made again on this machine, because the one at the root is lost."""
    reader = SegmentReader(world, keep_cache=True)
    world.file(world.segment_path(0, 0, ".filter")).unlink()
    reader()
    return Case(
        "rebuilt sidecar in the local cache",
        _cached(world, 0, reader.segment, ".rebuilt"),
        {"the lost one": b"DSBF"},
        reader,
    )


def view_cases(world: World) -> list[Case]:
    """Every file of a local view, swapped with the files of another segment's view."""
    reader = SegmentReader(world, keep_cache=True)
    reader()
    sibling = world.segment(0, 1)
    made = world.truth[sibling.name]
    world.store(0).lookup(sibling, made.keys, made.hashes)
    world.close()
    folder, other = (_cached(world, 0, s, ".view") for s in (reader.segment, sibling))
    pristine = world.path / "pristine view"
    shutil.copytree(folder, pristine)
    cases = []
    for path in sorted(folder.iterdir()):
        theirs = next((p for p in other.iterdir() if p.suffix == path.suffix == ".sst"), None)
        twin = theirs or other / path.name

        def read() -> str:
            try:
                return reader()
            finally:
                # Healing replaces the damaged view.
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(pristine, folder)

        name = "SST" if path.suffix == ".sst" else path.name.partition("-")[0]
        others = {"a sibling's": twin.read_bytes()} if twin.exists() else {}
        cases.append(Case(f"local view: {name}", path, others, read))
    return cases


def _cached(world: World, shard: int, segment: SegmentRef, suffix: str) -> Path:
    (found,) = world.cache_folder.glob(
        f"dedup-cache-*/{world.query_id}/shard={shard:05d}/{segment.name}{suffix}"
    )
    return found


def worlds(path: Path, *, remote: bool = False) -> tuple[World, World]:
    """A query's catalog, and the catalog of another query."""
    return (
        World(path / "own", QUERY, remote=remote, digested_shards=frozenset({1})),
        World(path / "stranger", OTHER_QUERY, remote=remote, seed=2),
    )
