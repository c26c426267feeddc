"""The file sink keeps the contract of sinks, in each format and on each kind of storage."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from dedup.sinks.files.outputs import output_of
from dedup.testing.sinks import SinkContract, SinkOutput
from tests.files_sink.folder_sink import FolderSink, left
from tests.support.needs import long
from tests.support.object_store import ObjectStore

BY_DAY, JSON = {"partition_by": "day"}, {"file_format": "json"}
CSV = {"file_format": "csv", "header": "true"}


class TestContract(SinkContract):
    @pytest.fixture(
        params=[
            ("local", {}), ("local", BY_DAY), ("s3", {}), long(("local", JSON)),
            long(("local", CSV)), long(("s3", BY_DAY)), long(("s3", JSON)),
        ],
        ids=lambda given: "-".join([given[0], *given[1].values()]),
    )  # fmt: skip
    def output(self, request: pytest.FixtureRequest, tmp_path: Path) -> SinkOutput:
        where, options = request.param
        place = str(tmp_path / "out")
        if where == "s3":
            store: ObjectStore = request.getfixturevalue("store")
            place = store.uri(f"contract-{tmp_path.parent.name}-{tmp_path.name}/out")
        sink = partial(FolderSink, place, **options)

        def lose_markers() -> None:
            output_of(sink(tmp_path / "checkpoint").work.options).root.delete_folder("_batches")

        def leftovers() -> list[str]:
            return left(sink(tmp_path / "checkpoint"))

        return SinkOutput(
            sink, tmp_path, lose_markers, one_commit=True, shared=False, leftovers=leftovers
        )
