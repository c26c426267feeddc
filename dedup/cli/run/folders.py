"""The folders of `dedup run`, kept apart: what one run writes, no other reads as its input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dedup.catalog.uri import scheme_of
from dedup.errors import ConfigError

if TYPE_CHECKING:
    from dedup.cli.run.run_options import RunOptions

#: Below the output, where `dedup watch OUTPUT` looks.
METRICS = "_metrics"
_OWN_FOLDERS = ("_staging", "_lock", "_dedup.json", "_dedup.log", "_dedup.files")


def local_folder(option: str, value: str | Path) -> Path:
    """Return the absolute path of a folder on this machine; ConfigError where it is elsewhere."""
    text = str(value)
    scheme = scheme_of(text)
    # As a path s3://bucket has lost one of its slashes.
    if scheme is not None and (text.startswith(f"{scheme}:/") or not Path(text).exists()):
        raise ConfigError(
            f"{option} {text} is a URI, but a folder on this machine is needed: give its path, "
            "beginning with a slash where its name has a colon."
        )
    return Path(text).expanduser().resolve()


def check_folders(options: RunOptions) -> None:
    """Refuse folders that would be read, hidden or overwritten by each other.

    Raises
    ------
    ConfigError
        Naming the option, the folder and the other one.
    """
    places = {
        "--output": options.output,
        "--catalog": options.catalog,
        "--checkpoint": options.checkpoint,
    }
    if options.duplicates is not None:
        places["--duplicates"] = options.duplicates
    if options.aside is not None:
        places["--bad-records"] = options.aside
    places["--log"] = options.log
    for option, path in places.items():
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{option} {path} is a file; give a folder.")
        if path.is_relative_to(options.input):
            raise ConfigError(
                f"{option} {path} lies in INPUT {options.input}, so that the next run would read "
                "what this one wrote; give a folder elsewhere."
            )
    if options.input.is_relative_to(options.output):
        raise ConfigError(
            f"INPUT {options.input} lies in --output {options.output}, where readers of the output "
            "would find it; give a folder elsewhere."
        )
    for option, path in places.items():
        _check_hidden(option, path, options.output)
    names = list(places)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            _check_apart(one, places[one], other, places[other], options.output)


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
