"""What `dedup tune` does around the measurement: reading a sample or checkpoint, and the report."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dedup.cli.catalog.work import snapshot
from dedup.cli.run.output_folder import log_of
from dedup.cli.tune.sample_files import read_sample
from dedup.errors import ConfigError
from dedup.tools import TuneOptions
from dedup.tools import tune as measure
from dedup.tools.repair.opening import open_root
from dedup.tools.tuning.report import check_extra
from dedup.tools.tuning.tune import Progress, Tuning


def tune(given: dict[str, Any], read: dict[str, Any], html: Path | None, tell: Progress) -> Tuning:
    """Measure and recommend; a report that could not be written is refused before.

    Parameters
    ----------
    given : dict
        Options of `TuneOptions`; ``sample`` and ``checkpoint`` are places.
    read : dict
        How a sample is read, as `RunOptions` has it.
    html : Path or None
        File for the report.
    tell : callable
        Told how far the work is.

    Raises
    ------
    ConfigError
        If what was asked cannot be found out or sized, or the report cannot be written.
    """
    if given["log"] is not None:
        given["log"] = log_of(given["log"])
    if given["sample"] is not None:
        if not read["id"]:
            raise ConfigError("--sample needs --id: the column of the record ID.")
        given["sample"] = partial(read_sample, input=given["sample"], **read)
    options = TuneOptions(**given)
    if html is not None:
        check_extra()
        check_writable(html)
    tell(0.0, "reading")
    if options.catalog is not None and isinstance(options.checkpoint, str):
        root = open_root(options.catalog)
        options = replace(options, catalog=root, checkpoint=snapshot(root, options.checkpoint))
    return measure(options, tell)


def check_writable(place: Path) -> None:
    """Refuse a file that cannot be written; a file that is there stays as it is.

    Raises
    ------
    ConfigError
        Naming the reason.
    """
    if os.path.isdir(place):
        raise ConfigError(f"--html {place} is a folder; give a file.")
    if not os.path.isdir(place.parent):
        raise ConfigError(f"--html {place}: there is no folder {place.parent}.")
    there = os.path.exists(place)
    try:
        with place.open("ab"):
            pass
        if not there:
            place.unlink()
    except OSError as error:
        raise ConfigError(f"--html {place} cannot be written: {error.strerror}.") from None
