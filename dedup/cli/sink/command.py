"""The flags of `dedup sink`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dedup.cli import flags as shared
from dedup.cli.ending import Done
from dedup.cli.failures import OK
from dedup.cli.flags import Flags, argument, command, option
from dedup.cli.help_screen import App
from dedup.cli.sink.screen import sink_lines

sink_app = App(help="Look into what a sink has published.")


@dataclass(frozen=True, kw_only=True)
class InspectSinkFlags(Flags):
    """What can be given to `dedup sink inspect`."""

    servers: Annotated[str, argument("SERVERS", "Kafka's addresses, host:port, with commas.")]
    topic: Annotated[str, argument("TOPIC", "Topic that the sink writes to.")]
    markers: Annotated[str | None, option("TOPIC", "Topic of its markers; else TOPIC-markers.")] = (
        None
    )
    checkpoint: Annotated[
        str | None, option("DIR", "Checkpoint of the query: says what its next start does.")
    ] = None
    query: shared.OnlyQuery = None
    command_config: Annotated[
        str | None,
        option("FILE", "Client's properties (security.protocol=...), as for Kafka's tools."),
    ] = None


@command(InspectSinkFlags)
def inspect(flags: InspectSinkFlags) -> Done:
    """Say what is published of each slice, and whether open transactions hold readers back.

    It reads, and changes nothing; a query may write meanwhile.
    """
    from dedup import tools
    from dedup.cli.sink.work import client_properties

    body = tools.inspect_sink(
        flags.servers,
        flags.topic,
        markers=flags.markers,
        checkpoint=flags.checkpoint,
        query=flags.query,
        options=client_properties(flags.command_config),
    ).to_json()
    return Done(OK, body, sink_lines(body))


sink_app.command()(inspect)
