"""Many small files of a published micro-batch become few large ones, while readers look.

What is exchanged, in one step, is a *leaf*: a folder of a micro-batch that holds files. Both sides
hold the same rows, so a reader that looks into it before or after sees the same. The new files have
new names: a reader that listed the old ones and opens them later gets an error, and never rows of
both. The old folder stays for a while, hidden, for a reader that is about to list it; were it
emptied at once, such a reader would see a leaf with few rows or none.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dedup import faults
from dedup.catalog.localfile import sync
from dedup.catalog.uri import check_local
from dedup.errors import ConfigError, DataError, DedupError
from dedup.files.exchange import exchange
from dedup.files.output_files import ParquetOutput, refusing
from dedup.machine import wall_clock_ms
from dedup.sinks.batch_folders import folder_of, published_batches
from dedup.sinks.content import Content, content_of

#: In the output: what is being made, and what was replaced.
FOLDER = "_compaction"
_NEW, _REPLACED, _LOCK = "new-", "replaced-", "_lock"
_REPLACED_AT = re.compile(f"{_REPLACED}([0-9]+)-")
_BATCH_ROWS = 16_384
_CHUNK_BYTES = 4 << 20
#: Whose files are lines, which can be put one behind another.
_LINES = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction did.

    Parameters
    ----------
    output : str
    folders : int
        Leaves that were exchanged.
    files_before, files_after : int
        Files of those leaves.
    left_folders : int
        Leaves with several small files of a kind that is not compacted, or beside folders, or that
        somebody else has changed meanwhile.
    kept_bytes : int
        Of replaced files, which a later compaction removes.
    """

    output: str
    folders: int
    files_before: int
    files_after: int
    left_folders: int
    kept_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return it as the command prints it."""
        return asdict(self)


def compact(
    output: Path, *, target_bytes: int, older_than_ms: int, keep_replaced_ms: int
) -> Compacted:
    """Compact the published micro-batches of an output on a local disk.

    Parameters
    ----------
    output : Path
        Of `dedup run`, `dedup_parquet` or the file sink, which may write meanwhile.
    target_bytes : int
        Files next to each other, by their names, are merged up to about so many.
    older_than_ms : int
        Micro-batches that were written later stay as they are.
    keep_replaced_ms : int
        How long replaced files stay, hidden.

    Raises
    ------
    ConfigError
        If there is no such output, another compaction runs, or the file system cannot do it.
    DataError
        If a file is damaged; its leaf stays as it is.
    DedupError
        If the disk is full.
    """
    check_local(str(output), "OUTPUT")
    numbers = published_batches(output)
    if not numbers:
        raise ConfigError(f"{output} shows no micro-batches (folders batch=N).")
    now_ms = wall_clock_ms()
    folders = before = after = left = 0
    with _alone(output) as own:
        _remove_replaced(own, now_ms - keep_replaced_ms, now_ms)
        for number in numbers:
            for leaf in _leaves(output / folder_of(number)):
                try:
                    if leaf.stat().st_mtime_ns // 1_000_000 > now_ms - older_than_ms:
                        continue
                    files = _files(leaf)
                    groups = _groups(files, target_bytes)
                    if len(groups) == len(files):
                        continue
                    if not _is_known(files) or _has_folders(leaf):
                        left += 1
                        continue
                    if not _replace(leaf, groups, own):
                        left += 1
                        continue
                except (FileNotFoundError, DedupError):
                    if leaf.exists():
                        raise
                    continue  # somebody has removed the micro-batch meanwhile
                folders, before, after = folders + 1, before + len(files), after + len(groups)
        kept = sum(path.stat().st_size for path in own.rglob("*") if path.is_file())
    return Compacted(
        output=str(output), folders=folders, files_before=before, files_after=after,
        left_folders=left, kept_bytes=kept,
    )  # fmt: skip


@contextmanager
def _alone(output: Path) -> Iterator[Path]:
    own = output / FOLDER
    own.mkdir(exist_ok=True)
    with (own / _LOCK).open("a", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"Another compaction of {output} is at work; wait for it.") from None
        yield own


def _remove_replaced(own: Path, before_ms: int, now_ms: int) -> None:
    """Remove what was replaced long ago; of what a killed run left nobody knows which it is."""
    for entry in sorted(own.iterdir()):
        if entry.name.startswith(_NEW):
            entry.rename(own / f"{_REPLACED}{now_ms}-{entry.name.removeprefix(_NEW)}")
        elif (found := _REPLACED_AT.match(entry.name)) and int(found[1]) <= before_ms:
            shutil.rmtree(entry)


def _leaves(folder: Path) -> Iterator[Path]:
    for parent, below, _ in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith(("_", ".")))
        yield Path(parent)


def _files(leaf: Path) -> list[Path]:
    return sorted(
        path for path in leaf.iterdir()
        if path.is_file() and not path.name.startswith(("_", "."))
    )  # fmt: skip


def _has_folders(leaf: Path) -> bool:
    """Whether an exchange would take folders away that are not this leaf's files."""
    return any(path.is_dir() for path in leaf.iterdir())


def _groups(files: Sequence[Path], target_bytes: int) -> list[list[Path]]:
    """Return which files become one: neighbours, until they are large enough together."""
    groups: list[list[Path]] = []
    size = target_bytes
    for path in files:
        nbytes = path.stat().st_size
        if not groups or size + nbytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += nbytes
    return groups


def _is_known(files: Sequence[Path]) -> bool:
    """Whether these files hold the same when they are put together."""
    endings = {path.suffix for path in files}
    if endings == {_LINES}:
        return True
    if endings != {".parquet"}:
        return False
    try:
        found = [pq.read_schema(path) for path in files]
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{files[0].parent} cannot be compacted, because a file in it cannot be read as "
            f"Parquet: {str(error).rstrip('.')}. It stays as it is.",
            remedy="bad-records",
        ) from None
    # Of times in nanoseconds, Spark's INT96, the encoding would change.
    is_plain = not any("[ns" in str(field.type) for field in found[0])
    return is_plain and all(other.equals(found[0], check_metadata=True) for other in found[1:])


def _replace(leaf: Path, groups: Sequence[Sequence[Path]], own: Path) -> bool:
    """Return whether fewer files are there now; not where somebody has changed the leaf."""
    name = uuid.uuid4().hex
    new = own / f"{_NEW}{name}"
    new.mkdir()
    try:
        for group in groups:
            if len(group) == 1:
                os.link(group[0], new / group[0].name)
            elif group[0].suffix == ".parquet":
                # Spark leaves files without rows, which have no row group and no codec to go on by.
                filled = [path for path in group if pq.read_metadata(path).num_rows]
                if len(filled) > 1:
                    _merge_parquet(filled, new / f"part-{uuid.uuid4().hex}.parquet")
                else:
                    kept = (filled or group)[0]
                    os.link(kept, new / kept.name)
            else:
                _merge_lines(group, new / f"part-{uuid.uuid4().hex}{_LINES}")
            faults.point("compact.file")
        sync(new)
        faults.point("compact.written")
        exchange(new, leaf)
    except Exception:
        # Before the exchange, what is there is nobody's. A process that dies leaves it.
        shutil.rmtree(new, ignore_errors=True)
        raise
    faults.point("compact.exchanged")
    # A file that came after they were listed would go with those that are replaced, and the rows
    # of one that was removed would be back.
    listed = {path.name for group in groups for path in group}
    is_same = listed == {path.name for path in _files(new)} and not _has_folders(new)
    if not is_same:
        exchange(new, leaf)
    sync(leaf.parent)
    new.rename(own / f"{_REPLACED}{wall_clock_ms()}-{name}")
    sync(own)
    return is_same


def _merge_parquet(files: Sequence[Path], path: Path) -> None:
    with pq.ParquetFile(files[0]) as first:
        groups = (first.metadata.row_group(n) for n in range(first.num_row_groups))
        codec = next(group.column(0).compression for group in groups if group.num_rows)
        compression = codec.lower()
        columns = first.schema_arrow
    compression = "none" if compression == "uncompressed" else compression
    target = ParquetOutput(path, columns, compression)
    before = Content()
    try:
        for each in files:
            for rows in _rows(each):
                before += content_of(rows)
                target.add(rows)
        target.finish()
    except BaseException:
        target.drop_unfinished()
        raise
    after = sum((content_of(rows) for rows in _rows(path)), Content())
    if after != before:
        raise DedupError(
            f"{path} does not read back as the files of {files[0].parent} that it was made of. "
            "Nothing has changed there; please report this."
        )


def _rows(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read as Parquet: {str(error).rstrip('.')}. Its folder stays as it "
            "is.",
            remedy="bad-records",
        ) from None


def _merge_lines(files: Sequence[Path], path: Path) -> None:
    with refusing(path), open(path, "xb") as out:
        for each in files:
            with open(each, "rb") as source:
                chunk = b"\n"
                while data := source.read(_CHUNK_BYTES):
                    out.write(chunk := data)
                if not chunk.endswith(b"\n"):
                    out.write(b"\n")
        out.flush()
        os.fsync(out.fileno())
