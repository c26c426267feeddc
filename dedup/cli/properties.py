"""Files of properties, as Java's and Spark's tools read them."""

from __future__ import annotations

import re

from dedup.errors import ConfigError
from dedup.spark.machine import home_path

_PROPERTY = re.compile(r"\s*([^\s=:]+)\s*[\s=:]\s*(.*?)\s*")


def read_properties(where: str, flag: str) -> dict[str, str]:
    """Return the properties of a file.

    Parameters
    ----------
    where : str
        Path of the file.
    flag : str
        What it was given by, for the error.

    Raises
    ------
    ConfigError
        If it cannot be read, or a line is none; a line may hold a secret, and is not shown.
    """
    path = home_path(where)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigError(f"{flag} {where} cannot be read: {reason}.") from None
    settings = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        found = _PROPERTY.fullmatch(line)
        if found is None:
            raise ConfigError(f"{flag} {where}, line {number}: it is not KEY VALUE.")
        settings[found[1]] = found[2]
    return settings
