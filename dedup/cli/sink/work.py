"""What `dedup sink` reads besides its flags."""

from __future__ import annotations

from dedup.cli.properties import read_properties


def client_properties(where: str | None) -> dict[str, str]:
    """Return the options ``kafka.*`` that a file of client properties stands for.

    Raises
    ------
    ConfigError
        If it cannot be read; with the number of the line, and not what stands in it.
    """
    found = {} if where is None else read_properties(where, "--command-config", secret=True)
    return {f"kafka.{name}": value for name, value in found.items()}
