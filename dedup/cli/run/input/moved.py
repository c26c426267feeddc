"""INPUT in another place: its files get their new names in what is known of earlier runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dedup.cli.run.input.new_columns import Note
from dedup.cli.run.input.rewritten import FilesAsRead
from dedup.cli.run.output_folder import Record
from dedup.cli.run.run_options import RunOptions
from dedup.errors import ConfigError
from dedup.spark.driver.file_log import FileLog, renamed


def move_input(options: RunOptions, note: Note) -> None:
    """Rename the files that earlier runs took, if INPUT holds them under their new names.

    A run that is killed meanwhile leaves names of both kinds; the next one renames the rest.

    Raises
    ------
    ConfigError
        If INPUT was elsewhere before, or holds other files; nothing has changed then.
    """
    record, new = Record.read(options.output), options.input
    if options.moved_from is None:
        return
    if record is None:
        raise _refused(f"--moved-from has no meaning: no run has written to {options.output} yet.")
    if record.options["input"] == str(new):
        return
    old = Path(record.options["input"])
    if old not in (options.moved_from, options.moved_from.resolve()):
        raise _refused(f"--moved-from {options.moved_from}: INPUT was {old}. Give that.")
    if old.is_relative_to(new) or new.is_relative_to(old):
        raise _refused(f"{old} and INPUT {new} are in each other. Move the files elsewhere.")
    log, as_read = FileLog(options.checkpoint), FilesAsRead(options.output)
    sizes, there = as_read.sizes(), list[Path]()
    for path in log.taken:
        now = Path(renamed(path, old, new))
        if not now.is_file():
            continue
        there.append(now)
        if sizes.get(path, now.stat().st_size) != now.stat().st_size:
            raise _refused(
                f"{now} is another file than {path}, which had {sizes[path]:,} bytes when it was "
                "read. Give the INPUT of then; move elsewhere before what was written again since."
            )
    if log.taken and not there:
        raise _refused(f"INPUT {new} holds none of the {len(log.taken):,} files that were read.")
    log.rename(old, new)
    as_read.note(there)
    replace(record, options={**record.options, "input": str(new)}).write(options.output)
    note(
        f"INPUT was {old} before. It holds {len(there):,} of the {len(log.taken):,} files that "
        "were read, under their names. Any that have other names now are read again."
    )


def check_moved(options: RunOptions, log: FileLog) -> None:
    """Refuse names of files that are not in INPUT: a run that was to change them was killed."""
    folder = str(options.input).rstrip("/") + "/"
    for path in log.taken:
        if not f"{path}/".startswith(folder):
            raise _refused(
                f"An earlier run took {path}, which is not in INPUT {options.input}. A run with "
                "--moved-from ended before all names were changed: run again with the INPUT and "
                "the --moved-from of then."
            )


def _refused(text: str) -> ConfigError:
    return ConfigError(f"{text} Nothing has changed.", remedy="changed-settings")
