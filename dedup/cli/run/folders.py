"""The folders of `dedup run`, kept apart: what one run writes, no other reads as its input."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dedup.catalog.uri import scheme_of
from dedup.errors import ConfigError
from dedup.sinks.output_owner import list_keeper
from dedup.spark.machine import home_path

#: Below the output, where `dedup watch OUTPUT` looks.
METRICS = "_metrics"
_OWN_FOLDERS = ("_staging", "_lock", "_dedup.json", "_dedup.log", "_dedup.files")


def local_folder(option: str, value: str | Path) -> Path:
    """Return the absolute path of a folder on this machine; ConfigError where it is elsewhere."""
    text = str(value)
    if not text:
        raise ConfigError(f"{option} is empty; give a folder.")
    scheme = scheme_of(text)
    # As a path s3://bucket has lost one of its slashes.
    if scheme is not None and (text.startswith(f"{scheme}:/") or not Path(text).exists()):
        raise ConfigError(
            f"{option} {text} is a URI, but a folder on this machine is needed: give its path, "
            "beginning with a slash where its name has a colon."
        )
    return home_path(text).resolve()


def check_folders(given: Path, output: Path, others: Mapping[str, Path]) -> None:
    """Refuse folders that would be read, hidden or overwritten by each other.

    Parameters
    ----------
    given : Path
        The input.
    output : Path
    others : mapping of option to Path
        What else a run writes.

    Raises
    ------
    ConfigError
        Naming the option, the folder and the other one.
    """
    places = {"--output": output, **others}
    for option, path in places.items():
        there = next(place for place in (path, *path.parents) if place.exists())
        if not there.is_dir():
            raise ConfigError(f"{option} {there} is a file; give a folder.")
        _check_readers(option, path)
        if path.is_relative_to(given):
            raise ConfigError(
                f"{option} {path} lies in INPUT {given}, so that the next run would read "
                "what this one wrote; give a folder elsewhere."
            )
    if given.is_relative_to(output):
        raise ConfigError(
            f"INPUT {given} lies in --output {output}, where readers of the output "
            "would find it; give a folder elsewhere."
        )
    for option, path in places.items():
        _check_hidden(option, path, output)
    names = list(places)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            _check_apart(one, places[one], other, places[other], output)


def _check_readers(option: str, path: Path) -> None:
    whose = list_keeper(lambda name: (path / name).is_dir())
    if whose is not None:
        raise ConfigError(
            f"{option} {path} belongs to {whose}, so that its readers would not see what a run "
            "writes; give another folder."
        )


def _check_hidden(option: str, path: Path, output: Path) -> None:
    """Refuse a folder below the output that readers of the output would look into."""
    if path == output or not path.is_relative_to(output):
        return
    first = path.relative_to(output).parts[0]
    if not first.startswith("_"):
        raise ConfigError(
            f"{option} {path} lies in --output {output}, where readers would find it; give a "
            "folder elsewhere, or one whose name begins with an underscore."
        )
    if first in _OWN_FOLDERS:
        raise ConfigError(f"{option} {path}: {first} is used by `dedup run`; choose another name.")


def _check_apart(one: str, a: Path, other: str, b: Path, output: Path) -> None:
    if a == b or (a.is_relative_to(b) and b != output) or (b.is_relative_to(a) and a != output):
        raise ConfigError(f"{one} {a} and {other} {b} overlap; give each a folder of its own.")
