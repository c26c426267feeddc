"""The flags of `dedup check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dedup.cli import flags as shared
from dedup.cli.ending import Done
from dedup.cli.flags import Flags, argument, command, option, switch


@dataclass(frozen=True, kw_only=True)
class CheckFlags(Flags):
    """What can be given to `dedup check`."""

    checkpoint: Annotated[str, argument("DIR", "Checkpoint, or the OUTPUT of `dedup run`.")]
    catalog: Annotated[str | None, option("ROOT", "Path or URI of the catalog.")] = None
    log: Annotated[str | None, shared.LOG] = None
    query: Annotated[str | None, option("ID", "ID or name that the query should have.")] = None
    conf: Annotated[list[str] | None, option("KEY=VALUE", "Spark setting of the next start.")] = (
        None
    )
    properties: Annotated[
        str | None, option("FILE", "All of them, as spark-defaults.conf; the rest is default.")
    ] = None
    source_option: Annotated[
        list[str] | None, option("KEY=VALUE", "Option of the source: failOnDataLoss=...")
    ] = None
    sink_option: Annotated[
        list[str] | None, option("KEY=VALUE", "Option of the Kafka sink: topic=...")
    ] = None
    kafka_retention: Annotated[
        str | None, option("DURATION", "retention.ms: '7 days', or forever.")
    ] = None
    horizon: Annotated[str | None, option("DURATION", "Horizon of the next start.")] = None
    late: Annotated[str | None, option("emit|drop", "What late= says at the next start.")] = None
    every: Annotated[
        bool, switch("List every rule that cannot be judged by what was given.", "--all")
    ] = False


@command(CheckFlags, "dedup check checkpoint --log metrics")
def check(flags: CheckFlags) -> Done:
    """Say which settings break the guarantee or cost speed, and what to change.

    Starts no Spark and changes nothing. Exit code 4: something breaks the guarantee.
    """
    from dedup.cli.check import screen, work

    code, body, findings = work.check(flags)
    if not flags.as_json:
        screen.show(body, findings, fold=not flags.every)
    return Done(code, body)
