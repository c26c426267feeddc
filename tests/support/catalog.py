"""A catalog on real files and RocksDB, and keys to put into it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from dedup import kernel
from dedup.catalog.cache import LocalCache
from dedup.catalog.certificate import Certificate
from dedup.catalog.definition import Definition
from dedup.catalog.open_views import OpenViews
from dedup.catalog.shard_files import ShardFiles
from dedup.catalog.store import Attempt, ShardStore
from dedup.core.entries import Entries
from dedup.core.keys import Keys
from dedup.core.ports import SegmentStore
from dedup.core.segment import SegmentPlan, SegmentRef
from dedup.core.sharding import derive_keys, filter_key_id, slot_keys
from dedup.errors import CatalogError, SegmentDamaged
from dedup.kernel.arrays import I64, U64
from dedup.storage.root import Root

QUERY = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
RUN = "11111111-2222-4333-8444-555555555555"
#: What no certificate lacks.
SECRET = b"a test's secret."
HASH_KEY = derive_keys(QUERY, SECRET)[1]
KEY_ID = filter_key_id(QUERY, SECRET)
START_MS, END_MS = 1_700_000_000_000, 1_700_000_600_000


@dataclass
class Content:
    """Distinct keys, their hashes and times."""

    keys: Keys
    hashes: U64
    times_ms: I64

    def __len__(self) -> int:
        return len(self.keys)


def certificate(
    query_id: str = QUERY,
    *,
    shards: int = 2,
    id_columns: tuple[tuple[str, str], ...] = (("id", "string"),),
    **changes: Any,
) -> Certificate:
    """The birth certificate of a query with an ID of text, or of these columns."""
    made = Certificate(
        query_id=query_id,
        id_columns=id_columns,
        encoding="v1",
        id_definitions=tuple(Definition(expression=name, kind=kind) for name, kind in id_columns),
        timestamp_source="column ts",
        timestamp_definition=Definition(expression="ts", kind="timestamp"),
        stable_timestamps=False,
        shards=shards,
        slot_keys=slot_keys(shards, shards),
        hash_key_id=filter_key_id(query_id, SECRET),
        birth_batch=0,
        secret=SECRET,
    )
    return replace(made, **changes)


def content(keys: Keys, seed: int = 1, start_ms: int = START_MS, end_ms: int = END_MS) -> Content:
    times_ms = np.random.default_rng(seed).integers(start_ms, end_ms, len(keys))
    return Content(keys, hashes_of(keys), times_ms)


def hashes_of(keys: Keys) -> U64:
    return kernel.hash64(keys.data, keys.offsets, HASH_KEY)


def fixed(n: int, prefix: str = "id", **more: int) -> Content:
    return content(Keys.from_list([f"{prefix}-{i:08d}".encode() for i in range(n)]), **more)


def varied(n: int, **more: int) -> Content:
    return content(Keys.from_list([f"{i}".encode() * (i % 7 + 1) for i in range(n)]), **more)


@dataclass
class Bench:
    """One catalog at ``root``, one cache directory, and processes that share them."""

    path: Path
    root: Root = field(init=False)
    attempts: int = 0

    def __post_init__(self) -> None:
        self.root = Root(self.path / "root")

    @property
    def remote(self) -> Root:
        """Another root, whose objects are fetched."""
        return Root(DirectoryFileSystem(f"{self.path}/remote"))

    def cache(self, **options: int) -> LocalCache:
        return LocalCache(QUERY, self.path / "cache", **options)

    def store(
        self,
        shard: int = 0,
        *,
        max_views: int = 8,
        cache: LocalCache | None = None,
        root: Root | None = None,
    ) -> ShardStore:
        """A store as a new process has it: nothing open, nothing loaded."""
        self.attempts += 1
        return ShardStore(
            ShardFiles(root or self.root, cache or self.cache(), QUERY, shard, SECRET),
            Attempt(7, RUN, self.attempts),
            OpenViews(max_views),
        )

    def lose_cache(self) -> None:
        """As on another machine, which has not written what is at the root."""
        shutil.rmtree(self.path / "cache")

    def file(self, seg: SegmentRef, suffix: str = ".sst", shard: int = 0) -> Path:
        return self.path / "root" / QUERY / f"shard={shard:05d}" / (seg.name + suffix)


def write(store: SegmentStore, made: Content, fpr: float = 0.01, **bucket: int) -> SegmentRef:
    start_ms, end_ms = bucket.get("start_ms", START_MS), bucket.get("end_ms", END_MS)
    entries = Entries.in_order(made.keys, made.hashes, made.times_ms)
    return store.write_segment(SegmentPlan(start_ms, end_ms, fpr), [entries])[0]


def written(store: SegmentStore, n: int) -> tuple[Content, SegmentRef]:
    """So many IDs, and the segment of them."""
    made = fixed(n)
    return made, write(store, made)


def knows(store: SegmentStore, seg: SegmentRef, made: Content) -> bool:
    """Whether the segment's filter answers yes for all that is in there."""
    return bool(store.may_hold(seg, np.sort(made.hashes)).all())


def check_answers(store: SegmentStore, seg: SegmentRef, made: Content) -> None:
    """Ask the filter and the segment for all that is in there."""
    assert knows(store, seg, made)
    assert store.lookup(seg, made.keys, made.hashes).tolist() == made.times_ms.tolist()


def answers_or_refuses(store: ShardStore, seg: SegmentRef, made: Content) -> str:
    """Ask for all that is in a whole segment; the error's text, empty where the answer is right."""
    try:
        check_answers(store, seg, made)
    except SegmentDamaged:
        pytest.fail("a whole segment was called damaged")
    except CatalogError as error:
        return str(error)
    return ""


def flip(path: Path, at: int) -> None:
    """Change one bit of a file, in place."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x10]))


@dataclass(frozen=True)
class DirectoryFileSystem:
    """A picklable factory of a file system that pyarrow does not know to be local."""

    folder: str

    def __call__(self) -> tuple[pafs.FileSystem, str]:
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        inner = pafs.SubTreeFileSystem(self.folder, pafs.LocalFileSystem())
        return pafs.PyFileSystem(Forwarding(inner)), "bucket/catalog"


class Forwarding(pafs.FileSystemHandler):  # type: ignore[misc]
    """Hands every call to another file system; ``fail`` may raise before a call."""

    def __init__(self, inner: pafs.FileSystem, fail: Callable[[str], None] | None = None) -> None:
        self.inner = inner
        self.fail = fail or (lambda call: None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Forwarding) and other.inner == self.inner

    def __hash__(self) -> int:
        return hash(type(self))

    def get_type_name(self) -> str:
        return "object-store"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        self.fail("get_file_info")
        return list(self.inner.get_file_info(paths))

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        self.fail("get_file_info_selector")
        return list(self.inner.get_file_info(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        self.inner.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self.fail("delete_file")
        self.inner.delete_file(path)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        self.fail("open_input_stream")
        return self.inner.open_input_stream(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        self.fail("open_input_file")
        return self.inner.open_input_file(path)

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        self.fail("open_output_stream")
        return self.inner.open_output_stream(path)

    def _refuse(self, *_: object) -> NoReturn:
        raise NotImplementedError("object stores have no folders, and cannot rename or append")

    delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    move = copy_file = open_append_stream = _refuse
