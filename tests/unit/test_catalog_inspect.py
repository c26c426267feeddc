from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dedup.catalog import segment_file
from dedup.catalog.blocks import encode_blocks
from dedup.catalog.layout import catalog_files, certificate_path
from dedup.core.entries import Entries
from dedup.core.hash_ranges import hash_range
from dedup.core.keys import Keys
from dedup.core.segment import SegmentPlan
from dedup.kernel.arrays import I64, U64
from dedup.tools.repair.segment_check import verify_segment, write_accepted_loss
from tests.support.catalog import (
    END_MS,
    QUERY,
    RUN,
    START_MS,
    Bench,
    certificate,
    fixed,
    flip,
    varied,
    write,
)


def test_every_file_is_listed_with_its_kind_and_size(bench: Bench) -> None:
    bench.root.put_bytes(f"{QUERY}/certificate.json", b"{}")
    runs = [f"{QUERY}/runs/{3:012d}-{RUN}{end}" for end in (".json", ".through-000000000017")]
    adopted = f"{QUERY}/shard=00002/adopted.json"
    for name in (*runs, adopted, "starts/8a-1"):
        bench.root.put_bytes(name, b"0")
    seg = write(bench.store(shard=2), fixed(10))
    write_accepted_loss(bench.root, QUERY, 2, seg.name)
    shard = f"{QUERY}/shard=00002"
    strange = (f"{shard}/notes.txt", f"{shard}/x.sst", f"{QUERY}/a/b.sst", "README",
               f"{QUERY}/runs/x")  # fmt: skip
    for foreign in strange:
        bench.root.put_bytes(foreign, b"mine")
    bench.root.put_bytes(f"{shard}/.{seg.name}.sst.1-abcd.tmp", b"half")
    files = {file.name: file for file in catalog_files(bench.root)}
    kinds = {name: file.parsed.kind for name, file in files.items()}
    assert kinds == {
        f"{QUERY}/certificate.json": "certificate",
        **dict.fromkeys(runs, "run"),
        adopted: "adopted",
        "starts/8a-1": "start",
        f"{shard}/{seg.name}.sst": "segment",
        f"{shard}/{seg.name}.filter": "sidecar",
        f"{shard}/{seg.name}.accepted-loss": "accepted_loss",
        f"{shard}/.{seg.name}.sst.1-abcd.tmp": "temp",
        **dict.fromkeys(strange, "foreign"),
    }
    said = [files[name].parsed for name in runs]
    assert [(s.run_id, s.epoch, s.through_epoch) for s in said] == [(RUN, 3, None), (RUN, 3, 17)]
    segment = files[f"{shard}/{seg.name}.sst"]
    assert segment.size_bytes == seg.sst_bytes
    parsed = segment.parsed
    assert (parsed.query_id, parsed.shard) == (QUERY, 2)
    assert (parsed.segment, parsed.run_id) == (seg.name, RUN)
    assert "README" not in {file.name for file in catalog_files(bench.root, QUERY)}


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """A catalog whose certificate holds the key of its segments."""
    for root in (bench.root, bench.remote):
        root.create_bytes(certificate_path(QUERY), certificate().to_bytes())
    return bench


@pytest.mark.parametrize("n", [0, 1, 65, 20_000])
def test_whole_segments_verify(bench: Bench, n: int) -> None:
    seg = write(bench.store(), varied(n))
    for known in (seg, None):
        report = verify_segment(bench.root, QUERY, 0, seg.name, known)
        assert report.ok, report.problems
        assert report.count == n


def test_verifying_changes_nothing_and_works_remotely(bench: Bench) -> None:
    root = bench.remote
    seg = write(bench.store(root=root), fixed(100))
    before = catalog_files(root)
    assert verify_segment(root, QUERY, 0, seg.name, seg).ok
    assert catalog_files(root) == before


def test_verify_reports_every_kind_of_damage(bench: Bench) -> None:
    writer = bench.store()
    made, other = fixed(3000), fixed(3000, prefix="no")
    seg, seg2 = write(writer, made), write(writer, other)
    sst, sidecar = bench.file(seg), bench.file(seg, ".filter")
    harms = {
        "the segment is missing": sst.unlink,
        "the sidecar is missing": sidecar.unlink,
        "the segment is damaged: Corruption": lambda: flip(sst, 20_000),
        "the segment is damaged: ": lambda: os.truncate(sst, 20_000),
        "the segment is damaged: its name is": lambda: shutil.copy(bench.file(seg2), sst),
        "the sidecar is damaged": lambda: flip(sidecar, 1000),
        "built from 3000 IDs and lacks": lambda: shutil.copy(bench.file(seg2, ".filter"), sidecar),
    }
    for message, harm in harms.items():
        originals = [(path, path.read_bytes()) for path in (sst, sidecar)]
        harm()
        report = verify_segment(bench.root, QUERY, 0, seg.name)
        assert not report.ok
        assert any(message in problem for problem in report.problems), (message, report.problems)
        for path, data in originals:
            path.unlink(missing_ok=True)
            path.write_bytes(data)
    assert verify_segment(bench.root, QUERY, 0, seg.name, seg).ok
    wrong = verify_segment(bench.root, QUERY, 0, seg.name, seg2)
    assert any("the manifest says" in problem for problem in wrong.problems)


def test_verify_reports_ids_in_wrong_blocks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Made by a writer with another idea of blocks; its checksums are all good.
    def of_half_as_many(
        keys: Keys, hashes: U64, offsets_ms: I64, nblocks: int, *, wide_times: bool, digests: None
    ) -> Iterator[tuple[bytes, bytes]]:
        return encode_blocks(keys, hashes, offsets_ms, nblocks // 2, wide_times=wide_times)

    monkeypatch.setattr(segment_file, "encode_blocks", of_half_as_many)
    seg = write(bench.store(), fixed(1000))
    monkeypatch.undo()
    report = verify_segment(bench.root, QUERY, 0, seg.name, seg)
    assert any("are in blocks where a lookup does not find them" in p for p in report.problems)


def test_verify_reports_ids_in_wrong_order(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Lookups do not need the order, but merges do.
    def turned(
        keys: Keys, hashes: U64, offsets_ms: I64, nblocks: int, **more: Any
    ) -> Iterator[tuple[bytes, bytes]]:
        back = np.arange(len(keys))[::-1].copy()
        return encode_blocks(keys.take(back), hashes, offsets_ms[back], nblocks, **more)

    monkeypatch.setattr(segment_file, "encode_blocks", turned)
    seg = write(bench.store(), fixed(20))
    monkeypatch.undo()
    report = verify_segment(bench.root, QUERY, 0, seg.name, seg)
    assert report.problems == ("20 IDs are not in (hash, key) order",)


def test_a_healthy_sidecar_of_a_swapped_segment_is_not_blamed(bench: Bench) -> None:
    made = fixed(2000)
    whole = Entries.in_order(made.keys, made.hashes, made.times_ms)
    half = whole[hash_range(whole.hashes, 2, 1)]
    seg, _ = bench.store().write_segment(SegmentPlan(START_MS, END_MS, 0.01, 2, 1), [half])
    assert verify_segment(bench.root, QUERY, 0, seg.name, seg).ok
    report = verify_segment(bench.root, QUERY, 0, seg.name, replace(seg, count=seg.count + 1))
    assert len(report.problems) == 1
