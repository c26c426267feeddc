"""Names that are read back: whoever may write an output, a root or a checkpoint names no path.

A checksum vouches for bytes and not for their writer. So each parser checks its names, and nothing
outside the folder that a name is joined to is read, moved or deleted.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dedup.catalog.accepted_loss import AcceptedLoss
from dedup.catalog.backup import read_adopted, read_backup, write_adopted, write_backup
from dedup.catalog.certificate import Certificate
from dedup.catalog.gc.lineage import Lineage, Run
from dedup.catalog.gc.pending_lists import read_pending_list, write_pending_list
from dedup.catalog.gc.runs import read_lineage, write_lineage
from dedup.cli.run.record import checkpoint_query_id
from dedup.core.bucket import Bucket, SortedRun
from dedup.core.clocks import Clocks
from dedup.core.manifest import Expired, Manifest, PendingList
from dedup.core.segment import SegmentRef
from dedup.core.state import ShardState
from dedup.errors import CatalogError, ConfigError, SinkError, StateError
from dedup.sinks.content import Content
from dedup.sinks.files.outputs import LocalOutput
from dedup.sinks.files.plans import BatchPlan, BatchPlans
from dedup.sinks.files.slice_files import WrittenFile
from dedup.sinks.ledger import Ledger
from dedup.sinks.marker import BATCH_SLOT, Marker
from dedup.sinks.protocol import StagedSlice
from dedup.sinks.slice_store import SliceStore
from dedup.sources.files.file_log import FileLog
from dedup.spark.driver.checkpoint_log import read_progress
from dedup.storage.document import from_document, to_document
from dedup.storage.root import Root
from tests.support.catalog import certificate

BAD = ["/home/victim", "../victim", "x/../../victim", "..", ".hidden", "", "a/b", "x\0y", 7, None]
QUERY = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"


def ref(name: Any) -> SegmentRef:
    return SegmentRef(name, 0, 10, 1, 1, 1, 1, 1)


def state(name: Any) -> ShardState:
    return ShardState(manifest=Manifest((Bucket(0, 10, runs=(SortedRun((ref(name),)),)),)))


def needed(found: object) -> None:
    """Raise if a reader counts its file as damaged, or found nothing to read."""
    if not found:
        raise ValueError("counts as damaged")


def read_as_run(name: Any, folder: Path) -> None:
    needed(name)  # a shard that no run has written has no run
    ShardState.from_head(replace(ShardState(), clocks=Clocks(run_id=name)).head())


def read_from_what_was_adopted(name: Any, folder: Path) -> None:
    write_adopted(Root(folder), QUERY, 0, state(name))
    read_adopted(Root(folder), QUERY, 0)


def read_from_a_backup(name: Any, folder: Path) -> None:
    write_backup(Root(folder), QUERY, 0, state(name))
    needed(read_backup(Root(folder), QUERY, 0))


def read_from_a_pending_list(name: Any, folder: Path) -> None:
    write_pending_list(Root(folder), QUERY, 0, "here", ["000000000001-a-1-0000", name])
    needed(read_pending_list(Root(folder), QUERY, 0, "here"))


def read_from_a_lineage(name: Any, folder: Path) -> None:
    write_lineage(Root(folder), QUERY, Lineage((Run(name, 0), Run("mine", 3))))
    needed(read_lineage(Root(folder), QUERY, Run("mine", 3)))


def read_from_a_checkpoint(name: Any, folder: Path) -> None:
    (folder / "metadata").write_text(json.dumps({"id": name}))
    with pytest.raises(ConfigError, match="metadata is damaged"):
        checkpoint_query_id(folder)
    read_progress(str(folder))


def read_from_a_manifest_of_slices(name: Any, folder: Path) -> None:
    needed(name)  # a slice without rows has no file
    staging = SliceStore(str(folder), QUERY, "kafka")
    staging.manifest(3, [StagedSlice(0, Content(1, 2, 3), name)])


Place = Callable[[Any, Path], object]
#: How a name is read back from each place that may hold one.
PLACES: dict[str, Place] = {
    "certificate": lambda name, _: Certificate.from_bytes(
        replace(certificate(), query_id=name).to_bytes(), "here"
    ),
    "segment": lambda name, _: SegmentRef.from_json(ref(name).to_json()),
    "expired segment": lambda name, _: Manifest.from_json(
        Manifest((), (Expired(name, 1, 1),)).to_json()
    ),
    "pending list's own": lambda name, _: Manifest.from_json(
        Manifest((), (), (PendingList(name, 1, 1, 1),)).to_json()
    ),
    "state row": lambda name, _: ShardState.from_bytes(state(name).to_bytes(), hash_key_id=0),
    "run of a state": read_as_run,
    "adopted state": read_from_what_was_adopted,
    "backup": read_from_a_backup,
    "pending list": read_from_a_pending_list,
    "lineage": read_from_a_lineage,
    "accepted loss": lambda name, _: AcceptedLoss.from_bytes(
        AcceptedLoss(name, None, None).to_bytes()
    ),
    "checkpoint": read_from_a_checkpoint,
    "manifest of slices": read_from_a_manifest_of_slices,
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("place", PLACES)
def test_a_name_that_is_read_back_cannot_be_a_path(place: str, name: Any, tmp_path: Path) -> None:
    with pytest.raises((StateError, CatalogError, SinkError, ValueError)):
        PLACES[place](name, tmp_path)


@pytest.mark.parametrize("place", sorted(PLACES.keys() - {"checkpoint"}))
def test_the_names_that_we_write_are_accepted(place: str, tmp_path: Path) -> None:
    is_slice = place == "manifest of slices"
    ours = f"staged/3-0-{uuid.uuid4().hex}.arrow" if is_slice else f"000000000004-{QUERY}-17-0002"
    PLACES[place](ours, tmp_path)


# --- plans of the sink of files

STAGED = f"_staging/{1:012d}-{'a' * 32}"
MARKER = Marker(
    query_id=QUERY, sink="files", slot=BATCH_SLOT, batch_id=1, rows=1, content="0" * 32, run_id="r"
)


def good_plan() -> BatchPlan:
    return BatchPlan(MARKER, STAGED, (WrittenFile(f"{STAGED}/d=1/x", "d=1/x", 1),))


def plant(output: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the plan of micro-batch 1 as somebody would who may write the output."""
    plan = output / "_batches" / f"{1:012d}.plan"
    plan.unlink(missing_ok=True)
    BatchPlans(Root(output)).create(good_plan())
    body = from_document(plan.read_bytes(), version=1)
    change(body)
    plan.write_bytes(to_document(body, version=1))


def of_another_batch(body: dict[str, Any]) -> None:
    body["marker"]["batch_id"] = 2


def of_another_batchs_files(body: dict[str, Any]) -> None:
    body["folder"] = STAGED.replace("001-", "002-")


def with_text_for_rows(body: dict[str, Any]) -> None:
    body["marker"]["rows"] = "1"


def without_files(body: dict[str, Any]) -> None:
    del body["files"]


@pytest.mark.parametrize("name", [*BAD[:3], *BAD[6:], "_staging", "_staging/000000000001-x", "."])
@pytest.mark.parametrize("field", ["folder", "staged", "name"])
def test_a_plan_names_only_what_was_staged(field: str, name: Any, tmp_path: Path) -> None:
    def change(body: dict[str, Any]) -> None:
        if field == "folder":
            body["folder"] = name
        else:
            body["files"][0][field == "name"] = name

    plant(tmp_path, change)
    plans = BatchPlans(Root(tmp_path))
    if field == "folder" or name in (*BAD[:3], "x\0y", 7, None, "."):
        with pytest.raises(
            SinkError, match=r"damaged.*is not (a path|text)|not a folder that was staged"
        ):
            plans.read(1)
    else:
        # On a local disk the folder is renamed, and these say only what is in it.
        assert plans.read(1) is not None


@pytest.mark.parametrize(
    "change", [of_another_batch, of_another_batchs_files, with_text_for_rows, without_files]
)
def test_a_plan_that_does_not_match_its_micro_batch_is_damaged(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    plant(tmp_path, change)
    with pytest.raises(SinkError, match="damaged"):
        BatchPlans(Root(tmp_path)).read(1)
    plant(tmp_path, lambda body: None)
    assert BatchPlans(Root(tmp_path)).read(1) == good_plan()


def test_a_link_in_place_of_staged_files_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / ".token").write_text("hidden")
    (victim / "x").write_text("x")
    output = tmp_path / "out"
    (output / "_staging").mkdir(parents=True)
    (output / STAGED).symlink_to(victim)
    with pytest.raises(SinkError, match="is a link"):
        LocalOutput(str(output)).carry_out(good_plan())
    assert (victim / ".token").exists()
    assert not (output / "batch=1").exists()


# --- numbers in names, and in documents


@pytest.mark.parametrize("number", ["../3", "x", None, 1.5, -1, True])
def test_a_ledger_without_a_valid_number_is_damaged(number: Any, tmp_path: Path) -> None:
    Root(tmp_path / QUERY).put_bytes("published.json", to_document({"batch_id": number}, version=1))
    with pytest.raises(SinkError, match="damaged"):
        Ledger(str(tmp_path), QUERY).published()


@pytest.mark.parametrize("field", ["slot", "batch_id", "rows", "time_ms", "query_id", "run_id"])
def test_a_marker_with_a_field_of_another_type_is_damaged(field: str) -> None:
    fields = asdict(MARKER) | {field: ["x"]}
    with pytest.raises(SinkError, match="damaged"):
        Marker.from_bytes(to_document(fields, version=1), "here")


def test_file_names_that_are_not_numbers_are_ignored(tmp_path: Path) -> None:
    """Python calls a superscript a digit, but cannot convert it to a number."""
    for name in ("²", "٣x", "-1", "x.compact"):
        folder = tmp_path / "sources" / "0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("v1\n")
        (tmp_path / "_batches").mkdir(exist_ok=True)
        (tmp_path / "_batches" / f"{name}.plan").write_text("")
    assert FileLog(tmp_path).taken == {}
    assert BatchPlans(Root(tmp_path)).numbers() == []
    (tmp_path / "batch=0").mkdir()
