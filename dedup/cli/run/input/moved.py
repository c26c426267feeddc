"""INPUT in another place: its files get their new names in what is known of earlier runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dedup.cli.run.input.new_columns import Note
from dedup.cli.run.input.rewritten import FilesAsRead
from dedup.cli.run.output_folder import Record
from dedup.cli.run.run_options import RunOptions
from dedup.errors import ConfigError
from dedup.spark.driver.file_log import FileLog


def move_input(options: RunOptions, note: Note) -> None:
    """Rename the files that earlier runs took, if INPUT holds them under their new names.

    A run that is killed meanwhile leaves names of both kinds; the next one renames the rest.

    Raises
    ------
    ConfigError
        If INPUT was elsewhere before, or holds other files, and nothing has changed then; or if a
        run that was to rename them was killed, and INPUT is the old one again.
    """
    record, new, given = Record.read(options.output), options.input, options.moved_from
    log, as_read = FileLog(options.checkpoint), FilesAsRead(options.output)
    if record is not None and record.options["input"] == str(new):
        for path in log.taken:
            if not Path(path).is_relative_to(new):
                raise ConfigError(
                    f"An earlier run took {path}, which is not in INPUT {new}. A run with "
                    "--moved-from ended before all names were changed: run again with the INPUT "
                    "and the --moved-from of then."
                )
        return
    if given is None:
        return
    if record is None:
        raise _refused(f"--moved-from has no meaning: no run has written to {options.output} yet.")
    old = Path(record.options["input"])
    if old not in (given, given.resolve()):
        raise _refused(f"--moved-from {given}: INPUT was {old}. Give that.")
    if old.is_relative_to(new) or new.is_relative_to(old):
        raise _refused(f"{old} and INPUT {new} are in each other. Move the files elsewhere.")
    sizes, there = as_read.sizes(), list[Path]()
    for path in log.taken:
        now = Path(path)
        now = new / now.relative_to(old) if now.is_relative_to(old) else now
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


def _refused(text: str) -> ConfigError:
    return ConfigError(f"{text} Nothing has changed.", remedy="changed-settings")
