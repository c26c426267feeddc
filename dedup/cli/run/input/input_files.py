"""The files of INPUT, by their names alone: which belong to it, and how Spark is to find them."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

from dedup.catalog.uri import literal
from dedup.cli.run.run_options import COLUMNAR, RunOptions
from dedup.errors import ConfigError
from dedup.sources.files.folder_columns import folder_names
from dedup.spark.driver.file_order import FileOrder

_SUFFIXES = {
    "csv": (".csv", ".csv.gz"),
    "json": (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"),
    "parquet": (".parquet",),
    "orc": (".orc",),
}
_FORMAT_OF = {suffix: name for name, suffixes in _SUFFIXES.items() for suffix in suffixes}

#: Doubled quotes as RFC 4180 has them, whitespace as it is, and a header that each file must meet.
_CSV_READ = {"header": "true", "enforceSchema": "false", "escape": '"'}


class Stamp(NamedTuple):
    """What tells that a file was written again."""

    mtime_ns: int
    size: int

    @property
    def mtime_ms(self) -> int:
        """As much of the time as Spark knows."""
        return self.mtime_ns // 1_000_000


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file that was looked at."""
    return Stamp(status.st_mtime_ns, status.st_size)


_NOWHERE = Stamp(0, 0)
#: How files of the tool lz4 begin. Hadoop's files, which Spark reads, begin with a length.
_LZ4_FRAMES = (b"\x04\x22\x4d\x18", b"\x02\x21\x4c\x18")


@dataclass(frozen=True, slots=True)
class InputFiles:
    """What the names below INPUT say.

    Parameters
    ----------
    root : Path
        Folder of the files, below which folders may be columns.
    file_format : str
        ``csv``, ``json``, ``parquet`` or ``orc``.
    pattern : str or None
        Glob that the names must match; None: every file that is not hidden.
    partitioned : bool
        There are folders such as ``day=2024-05-01``, whose names are columns.
    folder_columns : frozenset of str
        These names in lower case, as of the files that are there now.
    compressed : bool
        All files are gzipped.
    paths : tuple of Path
        The files that match, in the order in which they are read.
    stamps : dict of str to Stamp
        Theirs, by path, in the same order.
    left_out : int
        How many do not.
    only_one : bool
        INPUT is a file; no other is ever taken.
    listed : tuple of PurePath
        Those that the next query is to read; none: whatever is there.
    """

    root: Path
    file_format: str
    pattern: str | None
    partitioned: bool
    folder_columns: frozenset[str]
    compressed: bool
    paths: tuple[Path, ...]
    stamps: dict[str, Stamp]
    left_out: int
    only_one: bool = False
    listed: tuple[PurePath, ...] = ()

    @property
    def place(self) -> str:
        """What to give to Spark, which takes it for a glob: the files, or the folder."""
        root = literal(str(self.root))
        if self.only_one or not self.listed:
            return literal(str(self.paths[0])) if self.only_one else root
        names = [literal(str(path.relative_to(self.root))) for path in self.listed]
        if any("/" in name for name in names):
            # Hadoop takes braces with a slash apart, and one escape of each name with them.
            names = list(map(literal, names))
        listed = ",".join(name.replace(",", "\\,") for name in names)
        return f"{root.rstrip('/')}/{{{listed}}}"

    @property
    def reader_options(self) -> dict[str, str]:
        """Options of Spark's file source that make these and later files the input."""
        options = {
            "mode": "FAILFAST",
            # The default skips files a week older than the newest one, without a word.
            "maxFileAge": "36500d",
        }
        if self.file_format == "csv":
            options |= _CSV_READ
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
    """Look at the names below INPUT.

    Parameters
    ----------
    options : RunOptions
    by_name : bool
        Take only files that are named by the format, even where it is given.

    Raises
    ------
    ConfigError
        Where no format was given and the names do not agree on one, or where Spark cannot take a
        file or folder that is there.
    """
    only_one = options.input.is_file()
    root = options.input.parent if only_one else options.input
    found = _stamps([root / options.input.name] if only_one else _visible_files(root))
    order = file_order(options)
    files = sorted(found, key=lambda path: order.key(found[path].mtime_ms, str(path)))
    kinds = Counter(_format_of(path.name) for path in files)
    total = len(files)
    file_format, pattern = options.file_format, None
    if file_format is None or (by_name and not only_one):
        file_format = file_format or _guess(options.input, kinds)
        if not only_one:
            pattern = "*{" + ",".join(map(_in_any_case, _SUFFIXES[file_format])) + "}"
        files = [path for path in files if _format_of(path.name) == file_format]
    _refuse_names(files)
    _refuse_broken_links(files, found)
    folders = frozenset(name.lower() for path in files for name in folder_names(path, root))
    return InputFiles(
        root=root,
        file_format=file_format,
        pattern=pattern,
        partitioned=bool(folders),
        folder_columns=folders,
        compressed=bool(files) and all(path.name.lower().endswith(".gz") for path in files),
        paths=tuple(files),
        stamps={str(path): found[path] for path in files},
        left_out=total - len(files),
        only_one=only_one,
    )


def file_order(options: RunOptions) -> FileOrder:
    """Return the order in which a run reads files."""
    given = folded(dict(options.read_options))
    return FileOrder(options.order_files, newest_first=is_true(given, "latestfirst"))


def _stamps(paths: Iterable[Path]) -> dict[Path, Stamp]:
    """When each file was last written, and its size; zeros for a link to nothing."""
    found = {}
    for path in paths:
        try:
            found[path] = stamp_of(path.stat())
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            # Without a link, it was removed meanwhile.
            if path.is_symlink():
                found[path] = _NOWHERE
    return found


def _refuse_broken_links(files: Iterable[Path], stamps: Mapping[Path, Stamp]) -> None:
    for path in files:
        if stamps[path] is _NOWHERE:
            raise ConfigError(
                f"INPUT: {path} is a link to {os.readlink(path)}, which is not there; restore "
                "that file, or remove the link.",
                remedy="input-names",
            )


def _refuse_names(files: Iterable[Path]) -> None:
    for path in files:
        if ":" in path.name:
            wrong = "a colon in its name, which Hadoop cannot read; rename it"
        elif not _is_utf8(str(path)):
            wrong = "a name that is not in UTF-8, which Java cannot read; rename it"
        elif path.suffix.lower() == ".lz4" and _begin(path) in _LZ4_FRAMES:
            wrong = "LZ4 frames, which Spark reads as no rows; pack it with gzip or zstd instead"
        else:
            continue
        shown = os.fsencode(path).decode("utf-8", errors="replace")
        raise ConfigError(f"INPUT: {shown} has {wrong}.", remedy="input-names")


def _begin(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(4)
    return b""


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_in_folders(files: InputFiles) -> None:
    """Refuse a file in other partition folders than the rest: a column would have no value.

    Raises
    ------
    ConfigError
        Naming it.
    """
    if not files.partitioned:
        return
    for path in files.paths:
        own = {name.lower() for name in folder_names(path, files.root)}
        missing = files.folder_columns - own
        if missing or not own:
            raise ConfigError(
                f"INPUT: {path} lies in no folder such as {min(missing, default='day')}=..., "
                "whereas the "
                "folders of other files are columns. Move it into such a folder, or elsewhere.",
                remedy="input-names",
            )


def _visible_files(root: Path) -> Iterator[Path]:
    """The files that Spark's own listing has, links to folders included."""
    for parent, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(f for f in folders if not _hidden(f))
        for folder in folders:
            _refuse_loop(Path(parent, folder), root)
        for name in sorted(names):
            if not _hidden(name):
                yield Path(parent, name)


def _refuse_loop(folder: Path, root: Path) -> None:
    """Refuse a link to a folder that it lies in, whose files Spark would take again and again."""
    if not folder.is_symlink():
        return
    target = folder.resolve()
    way = [p.resolve() for p in folder.parents if root in (p, *p.parents)]
    if any(target in (place, *place.parents) for place in way):
        raise ConfigError(
            f"INPUT: {folder} is a link to {target}, which it lies in: its files would be read "
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
    for suffix, file_format in _FORMAT_OF.items():
        if lowered.endswith(suffix):
            return file_format
    return None


def _guess(root: Path, kinds: Counter[str | None]) -> str:
    formats = {kind: count for kind, count in kinds.items() if kind is not None}
    if len(formats) == 1:
        return next(iter(formats))
    if not formats:
        named = "file named as csv, json, parquet or orc; give --format" if kinds else "files"
        raise ConfigError(f"INPUT {root} holds no {named}.")
    found = " and ".join(f"{count} {kind}" for kind, count in sorted(formats.items()))
    raise ConfigError(f"INPUT {root} holds {found} files; give --format, or a folder of one kind.")


def _in_any_case(suffix: str) -> str:
    return "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in suffix)


def folded(settings: Mapping[str, str]) -> dict[str, str]:
    """Return options of Spark's reader by their names in lower case."""
    return {name.lower(): value for name, value in settings.items()}


def is_true(settings: Mapping[str, str], name: str) -> bool:
    """Whether an option of Spark's reader is on, by its name in lower case."""
    return settings.get(name, "").lower() == "true"


def separator(settings: Mapping[str, str]) -> str:
    """Return what stands between the values of a CSV record, by options in lower case."""
    given = settings.get("sep", settings.get("delimiter", ","))
    return {"\\t": "\t", "\\\\": "\\"}.get(given, given)
