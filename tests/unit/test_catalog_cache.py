from __future__ import annotations

import multiprocessing
import os
import shutil
import stat
import time
from io import BytesIO
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from dedup.catalog.cache import LEFTOVER_AGE_S, LocalCache
from dedup.catalog.database import View
from dedup.catalog.open_views import OpenViews
from dedup.core.segment import SegmentRef
from dedup.errors import CatalogError
from tests.support.catalog import QUERY, Bench, check_answers, fixed, knows, write, written
from tests.support.small_disk import DISK_BYTES, fill, small_disk


def open_files() -> list[str]:
    paths = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return paths


def test_open_views_stay_within_their_bound_and_are_closed(bench: Bench) -> None:
    store, made = bench.store(max_views=3), fixed(200)
    segs = [write(store, made) for _ in range(8)]
    for seg in segs * 2:
        check_answers(store, seg, made)
        ours = [path for path in open_files() if str(bench.path) in path]
        assert sum(path.endswith(".sst") for path in ours) <= 2 * 3
        assert not any(path.endswith(".filter") for path in ours)
    assert len(store._views._open_views._views) == 3
    # The last one used is still open: no further view is opened for it.
    before = open_files()
    store.lookup(segs[-1], made.keys, made.hashes)
    assert sorted(open_files()) == sorted(before)
    store._views._open_views.close_all()
    assert not any(path.endswith(".sst") and str(bench.path) in path for path in open_files())


def test_most_views_stay_open_when_there_is_room_for_most() -> None:
    """Every micro-batch goes through all segments in the same order: the worst for an LRU."""
    views, opened = OpenViews(30), 0
    for turn in range(20):
        for number in range(40):
            path = Path(f"{number}.view")
            if views.get(path) is None:
                views.add(path, cast(View, BytesIO()))
                opened += turn >= 5
    assert len(views._views) == 30
    assert opened < 15 * 40 // 2


def test_damage_to_a_filter_is_noticed_whenever_it_comes(bench: Bench) -> None:
    """Every page is checked at each read: a page may be damaged between two micro-batches."""
    store, made = bench.store(), fixed(200)
    seg = write(store, made)
    file = bench.file(seg, ".filter")
    assert knows(store, seg, made)
    assert store.counters.filters_rebuilt == 0
    with open(file, "r+b") as there:
        there.seek(64 + 8)
        there.write(bytes(seg.filter_bytes - 64 - 8))
    assert knows(store, seg, made)
    assert store.counters.filters_rebuilt == 1
    os.truncate(file, 0)
    assert knows(store, seg, made)


def test_no_writable_handle_or_scratch_outlives_a_call(bench: Bench) -> None:
    store, made = bench.store(), fixed(200)
    seg = write(store, made)
    store.lookup(seg, made.keys, made.hashes)
    writable = []
    for fd in os.listdir("/proc/self/fd"):
        path = Path(f"/proc/self/fd/{fd}")
        if path.exists() and str(bench.path) in os.readlink(path):
            flags = int(Path(f"/proc/self/fdinfo/{fd}").read_text().split()[3], 8)
            writable += [path] if flags & (os.O_WRONLY | os.O_RDWR) else []
    assert writable == []
    assert list((bench.cache().top / "tmp").iterdir()) == []


def build_and_look(
    path: Path, seg: SegmentRef, attempt: int, barrier: object, results: object
) -> None:
    bench = Bench(path, attempts=attempt)
    made = fixed(20_000)
    store = bench.store()
    barrier.wait()
    times_ms = store.lookup(seg, made.keys, made.hashes)
    results.put((times_ms.tolist() == made.times_ms.tolist(), store.counters.views_rebuilt))


def test_three_processes_build_one_view_at_the_same_time(bench: Bench) -> None:
    seg = write(bench.store(), fixed(20_000))
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    workers = [
        context.Process(target=build_and_look, args=(bench.path, seg, 10 + i, barrier, results))
        for i in range(3)
    ]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == [(True, 0)] * 3
    for worker in workers:
        worker.join(60)
    assert [entry.path.name for entry in bench.cache().entries()] == [seg.name + ".view"]
    assert list((bench.cache().top / "tmp").iterdir()) == []


def test_a_view_opens_while_another_process_opens_it(bench: Bench) -> None:
    """rocksdict empties and writes its own file at every open."""
    made, seg = written(bench.store(), 2_000)
    bench.store().lookup(seg, made.keys, made.hashes)
    (config,) = bench.cache().folder.glob("*/*.view/rocksdict-config.json")
    config.write_bytes(b"")
    store = bench.store()
    assert store.lookup(seg, made.keys, made.hashes).tolist() == made.times_ms.tolist()
    assert store.counters.views_rebuilt == 0
    assert config.read_bytes() != b"", "this version does not write it: check it as well"


def look_in_child(path: Path, seg: SegmentRef, results: object, store: object) -> None:
    made = fixed(20_000)
    results.put(store.lookup(seg, made.keys, made.hashes).tolist() == made.times_ms.tolist())


def test_a_forked_child_opens_views_of_its_own(bench: Bench) -> None:
    made = fixed(20_000)
    store = bench.store()
    seg = write(store, made)
    store.lookup(seg, made.keys, made.hashes)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=look_in_child, args=(bench.path, seg, results, store))
    child.start()
    assert results.get(timeout=60)
    child.join(60)
    assert store.lookup(seg, made.keys, made.hashes).tolist() == made.times_ms.tolist()


def test_leftovers_of_killed_builders_are_removed_after_an_hour(bench: Bench) -> None:
    cache = bench.cache()
    old, young = cache.top / "tmp" / "1-old", cache.top / "tmp" / "2-young"
    for folder in (old, young):
        (folder / "view").mkdir(parents=True)
        (folder / "segment").write_bytes(b"half")
    before_s = time.time() - LEFTOVER_AGE_S - 60
    for path in (old / "view", old / "segment", old):
        os.utime(path, (before_s, before_s))
    store, made = bench.store(cache=cache), fixed(10)
    store.lookup(write(store, made), made.keys, made.hashes)  # the first entry looks around
    assert not old.exists()
    assert young.exists()


def test_the_cache_stays_within_its_bound_least_recently_used_first(bench: Bench) -> None:
    root = bench.remote  # fetched copies take space
    made = fixed(5000)
    writer = bench.store(root=root)
    segs = [write(writer, made) for _ in range(6)]
    bound_bytes = int(segs[0].sst_bytes * 3.7)
    for i, seg in enumerate(segs):
        cache = bench.cache(cache_bytes=bound_bytes)
        store = bench.store(root=root, cache=cache)
        store.lookup(seg, made.keys, made.hashes)
        store.lookup(segs[0], made.keys, made.hashes)  # used again and again
        for age, entry in enumerate(reversed(cache.entries())):
            os.utime(entry.path, (1e9 + i * 100 - age,) * 2)
        assert sum(entry.size_bytes for entry in cache.entries()) <= bound_bytes
    names = {entry.path.name.removesuffix(".view") for entry in cache.entries()}
    assert {segs[0].name, segs[-1].name} <= names
    assert segs[1].name not in names


def test_without_a_bound_the_cache_takes_a_share_of_the_free_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        assert LocalCache(QUERY, disk).cache_bytes == DISK_BYTES // 4
        fill(disk, leave_bytes=4 << 20)
        cache = LocalCache(QUERY, disk)
        assert cache.cache_bytes == 1 << 20
        for number in range(5):
            with cache.scratch() as folder:
                cache.write(folder / "file", bytes(400_000))
                cache.publish(folder / "file", cache.entry(0, str(number)))
        assert sum(entry.size_bytes for entry in cache.entries()) <= 1 << 20
        assert LocalCache(QUERY, disk, 5000).cache_bytes == 5000
    free = shutil.disk_usage(tmp_path).free
    share = min(16 << 30, free // 4)
    assert LocalCache(QUERY, tmp_path).cache_bytes == pytest.approx(share, rel=0.1)


def test_a_view_that_another_process_removed_still_answers(bench: Bench) -> None:
    store = bench.store()
    made, seg = written(store, 3000)
    store.lookup(seg, made.keys.take(np.arange(1)), made.hashes[:1])
    assert bench.cache(cache_bytes=0).trim() == 1
    assert bench.cache().entries() == []
    assert store.lookup(seg, made.keys, made.hashes).tolist() == made.times_ms.tolist()
    other = bench.store()
    assert other.lookup(seg, made.keys, made.hashes).tolist() == made.times_ms.tolist()


def test_hard_links_to_live_segments_take_no_space(bench: Bench) -> None:
    store, made = bench.store(), fixed(20_000)
    seg = write(store, made)
    store.lookup(seg, made.keys, made.hashes)
    (entry,) = bench.cache().entries()
    assert entry.size_bytes < 20_000 < seg.sst_bytes
    bench.file(seg).unlink()
    (entry,) = bench.cache().entries()
    assert entry.size_bytes > seg.sst_bytes


def test_the_default_directory_is_sparks_local_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path}/a,{tmp_path}/b")
    assert LocalCache(QUERY).folder == tmp_path / "a" / f"dedup-cache-{os.getuid()}" / QUERY
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "c"))
    cache = LocalCache(QUERY)
    assert cache.top == tmp_path / "c" / f"dedup-cache-{os.getuid()}"
    assert stat.S_IMODE(cache.top.stat().st_mode) == 0o700


def test_a_cache_directory_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"dedup-cache-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CatalogError, match="another cache directory"):
        LocalCache(QUERY, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CatalogError, match="Cannot create the local cache"):
        LocalCache(QUERY, tmp_path / "file")
