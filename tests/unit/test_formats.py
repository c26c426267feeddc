"""Bytes of every documented format are read; other formats are named, not called damaged."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dedup.catalog import accepted_loss
from dedup.catalog import backup as backups
from dedup.catalog import certificate as certificates
from dedup.catalog import segment_file as segments
from dedup.catalog import successor as successors
from dedup.catalog.accepted_loss import accepted_loss_path, read_accepted_loss
from dedup.catalog.backup import check_backup, read_adopted, read_backup
from dedup.catalog.blocks import encode_blocks
from dedup.catalog.certificate import certificate_of
from dedup.catalog.gc import pending_lists, runs
from dedup.catalog.gc.lineage import Run
from dedup.catalog.gc.pending_lists import check_pending_list, read_pending_list
from dedup.catalog.gc.runs import check_lineage, list_runs, read_lineage
from dedup.catalog.layout import (
    catalog_files,
    certificate_path,
    run_path,
    segment_name,
    shard_path,
    successor_path,
)
from dedup.catalog.successor import refuse_closed
from dedup.core import filter as filters
from dedup.core.segment import SegmentRef
from dedup.core.state import ShardState
from dedup.errors import CatalogError, SegmentDamaged
from dedup.storage.document import from_document, to_document
from dedup.storage.root import Root
from dedup.tools.repair.damage import verify_objects
from dedup.tools.repair.segment_check import verify_segment
from tests.support.catalog import KEY_ID, QUERY, RUN, Bench, certificate, written

GOLDEN = Path(__file__).parents[1] / "golden"
WITH_OBJECTS = sorted(path.parent.name for path in GOLDEN.glob("v*/objects"))
SEGMENT = segment_name(1, RUN, 1, 0)
REF = SegmentRef(SEGMENT, 0, 10, 1, 1, 1, 1, 1)


@pytest.fixture(params=WITH_OBJECTS)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Root, dict[int, ShardState]]:
    """A catalog with every kind of object, as an earlier release wrote it, and its states."""
    made = tmp_path / "objects"
    shutil.copytree(GOLDEN / request.param / "objects", made)
    states = {
        shard: ShardState.from_bytes((made / f"state-{shard}.bin").read_bytes(), hash_key_id=KEY_ID)
        for shard in (0, 1)
    }
    return Root(str(made / "root")), states


def test_golden_objects_are_of_every_kind(objects: tuple[Root, dict[int, ShardState]]) -> None:
    root, _ = objects
    kinds = {file.parsed.kind for file in catalog_files(root, QUERY)}
    assert kinds == {
        "certificate", "segment", "sidecar", "accepted_loss", "pending_list", "backup", "adopted",
        "run",
    }  # fmt: skip


def test_golden_objects_are_read(objects: tuple[Root, dict[int, ShardState]]) -> None:
    root, states = objects
    assert verify_objects(root, QUERY, states) == []
    assert certificate_of(root, QUERY).shards == len(states)
    (old, new) = list_runs(root, QUERY)
    assert check_lineage(root, QUERY, new).runs == (Run(old.run_id, 0), Run(new.run_id, 7))
    for shard, state in states.items():
        assert len(state.tail) == 20
        assert set(state.filters) == {segment.name for segment in state.manifest.segments()}
        assert check_backup(root, QUERY, shard).head() == {**state.head(), "filters": []}
        adopted = read_adopted(root, QUERY, shard)
        assert adopted is not None
        assert adopted.epoch == -1
        for listed in state.manifest.pending_lists:
            assert len(check_pending_list(root, QUERY, shard, listed.name)) == listed.count
        for segment in state.manifest.segments():
            assert read_accepted_loss(root, QUERY, shard, segment) is not None
            report = verify_segment(root, QUERY, shard, segment.name, segment)
            assert report.ok, report.problems
            assert report.count == segment.count


def test_the_page_names_the_versions_that_are_written() -> None:
    page = (Path(segments.__file__).parent / "FORMATS.md").read_text()
    table = page.partition("| object | format |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| ([^|]+?) \| (\d+) \|", table, re.MULTILINE))
    assert {kind: int(version) for kind, version in rows.items()} == {
        "segment (its metadata)": segments.SEGMENT_FORMAT,
        "block in a segment": 1,
        "filter sidecar": filters._VERSION,
        "birth certificate": certificates.CERTIFICATE_FORMAT,
        "pending list": pending_lists.PENDING_LIST_FORMAT,
        "run": runs.RUN_FORMAT,
        "manifest backup, adopted memory": backups.CAPPED_BACKUP_FORMAT,
        "accepted loss": accepted_loss.ACCEPTED_LOSS_FORMAT,
        "successor": successors.SUCCESSOR_FORMAT,
    }


READERS: dict[str, tuple[str, Callable[[Root], object]]] = {
    "certificate": (certificate_path(QUERY), lambda root: certificate_of(root, QUERY)),
    "pending list": (
        shard_path(QUERY, 0, f"{SEGMENT}.pending-list"),
        lambda root: read_pending_list(root, QUERY, 0, SEGMENT),
    ),
    "accepted loss": (
        accepted_loss_path(QUERY, 0, SEGMENT),
        lambda root: read_accepted_loss(root, QUERY, 0, REF),
    ),
    "backup": (
        shard_path(QUERY, 0, "backup.json"),
        lambda root: read_backup(root, QUERY, 0),
    ),
    "adopted": (
        shard_path(QUERY, 0, "adopted.json"),
        lambda root: read_adopted(root, QUERY, 0),
    ),
    "successor": (successor_path(QUERY), lambda root: refuse_closed(root, QUERY)),
    "lineage": (run_path(QUERY, RUN, 3), lambda root: read_lineage(root, QUERY, Run(RUN, 3))),
}  # fmt: skip


@pytest.mark.parametrize("kind", READERS)
def test_an_object_of_a_later_format_is_named(tmp_path: Path, kind: str) -> None:
    root = Root(str(tmp_path))
    name, read = READERS[kind]
    newest = backups.CAPPED_BACKUP_FORMAT if kind in ("backup", "adopted") else 1
    root.put_bytes(name, to_document({"what": "nobody knows"}, version=newest + 1))
    formats = rf"has format {newest + 1}, .* reads format {newest}"
    with pytest.raises(CatalogError, match=formats) as refused:
        read(root)
    assert root.url(name) in refused.value.text
    assert refused.value.remedy == "other-version"
    problems = [p.problem for p in verify_objects(root, QUERY) if p.name == name]
    assert len(problems) == 1
    assert f"has format {newest + 1}" in problems[0]
    assert "damaged:" not in problems[0]


@pytest.mark.parametrize("kind", READERS)
def test_a_format_number_that_was_damaged_is_damage(tmp_path: Path, kind: str) -> None:
    root = Root(str(tmp_path))
    name, read = READERS[kind]
    data = to_document({"what": "nobody knows"}, version=99)
    root.put_bytes(name, data.replace(b"99", b"98"))
    with suppress(CatalogError):
        assert not read(root)
    (problem,) = (p.problem for p in verify_objects(root, QUERY) if p.name == name)
    assert "checksum does not match" in problem


def test_nesting_of_any_depth_is_reported_as_damage() -> None:
    """Some depths can still be read by Python, and not be written."""
    depth = sys.getrecursionlimit()
    for levels in (*range(depth - 60, depth + 20), 200_000):
        with pytest.raises(ValueError, match=r"nested too deeply|checksum does not match"):
            from_document(b'{"a":%s%s,"format":1}' % (b"[" * levels, b"]" * levels), version=1)


def later_metadata(meta: segments.SegmentMeta) -> bytes:
    fields: dict[str, Any] = {"format": segments.SEGMENT_FORMAT + 1, "name": meta.name}
    return json.dumps(fields).encode()


def later_blocks(*given: Any, **more: Any) -> Iterator[tuple[bytes, bytes]]:
    for entry_key, block in encode_blocks(*given, **more):
        assert block[0] == 1
        yield entry_key, bytes([2]) + block[1:]


def test_a_segment_of_a_later_format_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(segments.SegmentMeta, "to_bytes", later_metadata)
        patch.setattr(segments, "encode_blocks", later_blocks)
        made, seg = written(bench.store(), 50)
    bench.root.put_bytes(certificate_path(QUERY), certificate().to_bytes())
    with pytest.raises(CatalogError, match="written by another release: it has format 2") as said:
        bench.store().lookup(seg, made.keys, made.hashes)
    assert not isinstance(said.value, SegmentDamaged)
    assert said.value.remedy == "other-version"
    report = verify_segment(bench.root, QUERY, 0, seg.name, seg)
    assert [p for p in report.problems if "damaged" in p] == []
    assert "the segment was written by another release: it has format 2" in report.problems[0]


def test_a_sidecar_of_a_later_format_is_rebuilt_from_its_segment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(filters, "_VERSION", 2)
        made, seg = written(bench.store(), 50)
    store = bench.store()
    order = np.argsort(made.hashes)
    assert store.may_hold(seg, made.hashes[order]).all()
    assert store.counters.filters_rebuilt == 1
    report = verify_segment(bench.root, QUERY, 0, seg.name, seg)
    assert any("it has format 2, and this release" in problem for problem in report.problems)
