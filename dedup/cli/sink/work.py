"""What `dedup sink` reads besides its flags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup.cli.properties import read_properties
from dedup.errors import ConfigError

if TYPE_CHECKING:
    from dedup.cli.sink.command import InspectSinkFlags


def client_properties(where: str | None) -> dict[str, str]:
    """Return the options ``kafka.*`` that a file of client properties stands for.

    Raises
    ------
    ConfigError
        If it cannot be read; with the number of the line, and not what stands in it.
    """
    found = {} if where is None else read_properties(where, "--command-config")
    return {f"kafka.{name}": value for name, value in found.items()}


def refuse_flags_of_kafka(flags: InspectSinkFlags) -> None:
    """Refuse what is said of Kafka where no topic is given, so that a folder is looked into.

    Raises
    ------
    ConfigError
        Naming the flag.
    """
    for flag in ("markers", "query", "command_config"):
        if getattr(flags, flag) is not None:
            raise ConfigError(
                f"--{flag.replace('_', '-')} is for Kafka, and without TOPIC {flags.where} is "
                "taken for a folder of files: give the topic, or leave the flag out."
            )
