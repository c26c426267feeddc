"""List the files of INPUT, tell Spark which files to read, and open text files."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from dedup.cli.run.options import COLUMNAR, RunOptions
from dedup.errors import ConfigError
from dedup.sources.files.file_order import FileOrder
from dedup.sources.files.folder_columns import folder_names
from dedup.sources.files.text_options import folded, is_true
from dedup.storage.uri import literal

_SUFFIXES = {
    "csv": (".csv", ".csv.gz"),
    "json": (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"),
    "parquet": (".parquet",),
    "orc": (".orc",),
}
#: Suffixes of files that pyarrow cannot unpack.
_ONLY_HADOOP = (".deflate", ".snappy", ".lzo", ".lzo_deflate")


class Stamp(NamedTuple):
    """Modification time and size of a file. If either differs, the file has changed."""

    mtime_ns: int
    size: int

    @classmethod
    def of(cls, path: str | Path) -> Stamp:
        status = os.stat(path)
        return cls(status.st_mtime_ns, status.st_size)

    @property
    def mtime_ms(self) -> int:
        return self.mtime_ns // 1_000_000


_NOWHERE = Stamp(0, 0)


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files of INPUT that a run reads."""

    #: Folder that holds the files, also in subfolders.
    root: Path
    #: ``csv``, ``json``, ``parquet`` or ``orc``.
    file_format: str
    #: Glob that file names must match, or None for every file that is not hidden.
    pattern: str | None
    #: Whether subfolders such as ``day=2024-05-01`` are columns.
    partitioned: bool
    #: Columns that the subfolders name, in lower case.
    folder_columns: frozenset[str]
    #: Whether all files are gzipped.
    compressed: bool
    #: Matching files, in the order of reading.
    paths: tuple[Path, ...]
    #: Stamps of these files by path, in the same order.
    stamps: dict[str, Stamp]
    #: Number of files that do not match `pattern`.
    left_out: int
    #: Whether INPUT is a file, not a folder.
    only_one: bool = False
    #: Files that the next query reads, or empty for all files.
    listed: tuple[PurePath, ...] = ()

    @property
    def partitions(self) -> frozenset[str]:
        """Columns that the subfolders name, or an empty set if subfolders are no columns."""
        return self.folder_columns if self.partitioned else frozenset()

    @property
    def place(self) -> str:
        """The path that Spark gets, which is the folder or a glob of files."""
        if self.only_one:
            return literal(str(self.paths[0]))
        root = literal(str(self.root))
        if not self.listed:
            return root
        names = [literal(str(path.relative_to(self.root))) for path in self.listed]
        if any("/" in name for name in names):
            # Escape names twice, because Hadoop removes an escape if braces hold a slash.
            names = list(map(literal, names))
        listed = ",".join(name.replace(",", "\\,") for name in names)
        return f"{root.rstrip('/')}/{{{listed}}}"

    @property
    def reader_options(self) -> dict[str, str]:
        """Options with which Spark's file source finds these files, and files that arrive later."""
        options = {
            # By default Spark silently skips files that are a week older than the newest file.
            "maxFileAge": "36500d"
        }
        if self.file_format in COLUMNAR:
            options["mergeSchema"] = "true"
        if self.pattern is not None:
            options["pathGlobFilter"] = self.pattern
        if not self.partitioned:
            options["recursiveFileLookup"] = "true"
        elif self.place != str(self.root):
            options["basePath"] = str(self.root)
        return options


def find_files(options: RunOptions, *, by_name: bool = False) -> InputFiles:
    """List the files of INPUT. With `by_name`, omit files whose names do not show the format."""
    only_one = options.input.is_file()
    root = options.input.parent if only_one else options.input
    stamps = _stamps([root / options.input.name] if only_one else _visible_files(root))
    order = file_order(options)
    files = sorted(stamps, key=lambda path: order.key(stamps[path].mtime_ms, str(path)))
    kinds = Counter(_format_of(path.name) for path in files)
    total = len(files)
    file_format, pattern = options.file_format, None
    if file_format is None or (by_name and not only_one):
        file_format = file_format or _guess(options.input, kinds)
        if not only_one:
            pattern = "*{" + ",".join(map(_in_any_case, _SUFFIXES[file_format])) + "}"
        files = [path for path in files if _format_of(path.name) == file_format]
    _refuse_unreadable(files, stamps)
    folders = frozenset(name.lower() for path in files for name in folder_names(path, root))
    return InputFiles(
        root=root,
        file_format=file_format,
        pattern=pattern,
        partitioned=bool(folders),
        folder_columns=folders,
        compressed=bool(files) and all(path.name.lower().endswith(".gz") for path in files),
        paths=tuple(files),
        stamps={str(path): stamps[path] for path in files},
        left_out=total - len(files),
        only_one=only_one,
    )


def file_order(options: RunOptions) -> FileOrder:
    read_options = folded(dict(options.read_options))
    return FileOrder(options.order_files, newest_first=is_true(read_options, "latestfirst"))


def _stamps(paths: Iterable[Path]) -> dict[Path, Stamp]:
    """Return the stamps of existing files, and `_NOWHERE` for a broken link."""
    stamps = {}
    for path in paths:
        try:
            stamps[path] = Stamp.of(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            if path.is_symlink():
                stamps[path] = _NOWHERE
    return stamps


def _refuse_unreadable(files: Iterable[Path], stamps: Mapping[Path, Stamp]) -> None:
    for path in files:
        # Show bytes that are not UTF-8 as replacement characters.
        shown = os.fsencode(path).decode("utf-8", errors="replace")
        if ":" in path.name:
            wrong = "has a colon in its name, which Hadoop cannot read; rename it"
        elif shown != str(path):
            wrong = "has a name that is not in UTF-8, which Java cannot read; rename it"
        elif stamps[path] is _NOWHERE:
            wrong = (
                f"is a link to {os.readlink(path)}, which does not exist; restore that file, or "
                "remove the link"
            )
        elif path.suffix.lower() in _ONLY_HADOOP:
            wrong = "is packed in a way that only Hadoop reads; pack it with gzip or zstd instead"
        else:
            continue
        raise ConfigError(f"INPUT: {shown} {wrong}.", remedy="input-names")


def check_in_folders(files: InputFiles) -> None:
    """Raise ConfigError if a file lacks a folder that names a column for all other files."""
    if not files.partitioned:
        return
    for path in files.paths:
        own = {name.lower() for name in folder_names(path, files.root)}
        missing = files.folder_columns - own
        if missing or not own:
            raise ConfigError(
                f"INPUT: {path} is not in a folder such as {min(missing, default='day')}=..., but "
                "the folders of other files are columns. Move it into such a folder, or elsewhere.",
                remedy="input-names",
            )


def _visible_files(root: Path) -> Iterator[Path]:
    """Yield the files that Spark would list, which follows links to folders."""
    for parent, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(f for f in folders if not _hidden(f))
        for folder in folders:
            _refuse_loop(Path(parent, folder), root)
        for name in sorted(names):
            if not _hidden(name):
                yield Path(parent, name)


def _refuse_loop(folder: Path, root: Path) -> None:
    if not folder.is_symlink():
        return
    target = folder.resolve()
    way = [p.resolve() for p in folder.parents if root in (p, *p.parents)]
    if any(target in (place, *place.parents) for place in way):
        raise ConfigError(
            f"INPUT: {folder} is a link to {target}, which contains it: its files would be read "
            "again and again. Remove the link.",
            remedy="input-names",
        )


def _hidden(name: str) -> bool:
    return (
        name.startswith(".")
        or (name.startswith("_") and "=" not in name)
        or name.endswith("._COPYING_")
    )


def _format_of(name: str) -> str | None:
    lowered = name.lower()
    return next((f for f, suffixes in _SUFFIXES.items() if lowered.endswith(suffixes)), None)


def _guess(root: Path, kinds: Counter[str | None]) -> str:
    formats = {kind: count for kind, count in kinds.items() if kind is not None}
    if len(formats) == 1:
        return next(iter(formats))
    if not formats:
        named = "file named as csv, json, parquet or orc; give --format" if kinds else "files"
        raise ConfigError(f"INPUT {root} holds no {named}.")
    counts = " and ".join(f"{count} {kind}" for kind, count in sorted(formats.items()))
    raise ConfigError(f"INPUT {root} holds {counts} files; give --format, or a folder of one kind.")


def _in_any_case(suffix: str) -> str:
    return "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in suffix)
