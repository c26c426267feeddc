"""Lists a query's input files, from the log that Spark's file source keeps in the checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from dedup.storage.localfile import publish
from dedup.storage.uri import local_path

#: Characters that Java encodes in a URI's path: blanks, control codes, and ASCII except the listed
#: characters.
_JAVA = re.compile(r"(?![/A-Za-z0-9!$&'()*+,;=:@~._-])[\x00-\x9f\s]")


@dataclass(frozen=True, slots=True)
class Taken:
    """A file that Spark has planned to read.

    `batch` is the number in the log of the file source. A micro-batch takes one or more numbers.
    """

    mtime_ms: int
    batch: int


class FileLog:
    """The files that a query with one file source had planned at the last `refresh`, by path.

    An entry of the log is a file ``sources/0/<n>`` in the checkpoint, with a version line and then
    a JSON object per input file. Every tenth entry is ``<n>.compact`` and repeats all earlier
    entries. Unreadable entries are skipped.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.taken: dict[str, Taken] = {}
        self._checkpoint = checkpoint
        self._known = -1
        self.refresh()

    def refresh(self) -> dict[str, Taken]:
        """Read the entries that Spark has added since the last call, and return the new files."""
        folder = self._checkpoint / "sources" / "0"
        if not folder.is_dir():
            return {}
        numbered = {}
        for path in folder.iterdir():
            number = path.name.removesuffix(".compact")
            if number.isdecimal() and int(number) > self._known:
                numbered[path] = int(number)
        added: dict[str, Taken] = {}
        for path in sorted(numbered, key=lambda p: numbered[p]):
            added |= self._read(path)
        self._known = max(numbered.values(), default=self._known)
        self.taken |= added
        return added

    def _read(self, path: Path) -> dict[str, Taken]:
        by_path: dict[str, Taken] = {}
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            lines = path.read_text(encoding="utf-8").split("\n")
            # Read from the end, because a compact entry begins with files that are already known.
            for line in reversed(lines[1:]):
                if line:
                    entry = json.loads(line)
                    taken = Taken(int(entry["timestamp"]), int(entry["batchId"]))
                    if taken.batch <= self._known:
                        break
                    by_path[local_path(entry["path"])] = taken
        return by_path

    def rename(self, old: Path, new: Path) -> None:
        """Replace a moved folder's old path by its new path in each entry of the log."""
        for entry in sorted((self._checkpoint / "sources" / "0").glob("[0-9]*")):
            text = entry.read_text(encoding="utf-8")
            lines = "\n".join(_renamed_line(line, old, new) for line in text.split("\n"))
            if lines != text:
                # Spark compares an entry with its checksum, if there is one.
                entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
                publish(entry, lines.encode(), create=False)

    def committed(self) -> int:
        """Return the source's last committed batch, or -1 if no batch is committed."""
        done = last_number(self._checkpoint / "commits")
        return -1 if done < 0 else log_offset(self._checkpoint, done)

    def ahead(self, paths: Iterable[str]) -> list[str]:
        """Return those of the given files that no committed micro-batch has read."""
        end = self.committed()
        return [p for p in paths if p not in self.taken or self.taken[p].batch > end]

    def unfinished(self) -> list[str]:
        """Return the files of the micro-batch that is planned but not committed."""
        end = self.committed()
        return [path for path, taken in self.taken.items() if taken.batch > end]

    def count(self, end: int) -> int:
        """Count the files of the source's batches up to `end`."""
        return sum(1 for taken in self.taken.values() if taken.batch <= end)

    def of_batch(self, batch_id: int) -> list[Path]:
        """Return a micro-batch's files. Raises ValueError if Spark's logs lack the micro-batch."""
        end = log_offset(self._checkpoint, batch_id)
        begin = log_offset(self._checkpoint, batch_id - 1) if batch_id else -1
        if end < 0 or (batch_id and begin < 0):
            raise ValueError(batch_id)
        return [Path(path) for path, taken in self.taken.items() if begin < taken.batch <= end]


def java_path(path: str) -> str:
    """Return a path as Java encodes it in a URI."""
    return _JAVA.sub(lambda one: quote(one[0], safe=""), path)


def _renamed_line(line: str, old: Path, new: Path) -> str:
    entry = json.loads(line) if line.startswith("{") else {"path": "/"}
    path = local_path(entry["path"])
    if not Path(path).is_relative_to(old):
        return line
    # Spark compares encoded names, so the rest of the path keeps its encoding.
    depth = len(Path(path).relative_to(old).parts)
    rest = entry["path"].rsplit("/", depth)[1:]
    entry["path"] = "file://" + "/".join([java_path(str(new)), *rest])
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"))


def log_offset(checkpoint: Path, batch_id: int) -> int:
    """Return the file source's last batch in a micro-batch, or -1 if the log lacks it."""
    try:
        text = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
        version, _, source = text.split("\n")[:3]
        if version == "v2":
            source = source.partition(":")[2]
        return int(json.loads(source)["logOffset"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def last_number(log: Path) -> int:
    """Return the highest number of an entry in one of Spark's logs, or -1 for an empty log."""
    names = log.iterdir() if log.is_dir() else iter(())
    return max((int(path.name) for path in names if path.name.isdecimal()), default=-1)
