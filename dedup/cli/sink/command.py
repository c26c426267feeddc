"""The flags of `dedup sink`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dedup.cli import flags as shared
from dedup.cli.ending import Done
from dedup.cli.failures import OK
from dedup.cli.flags import Flags, argument, command, option
from dedup.cli.help_screen import App
from dedup.cli.sink.screen import folder_lines, sink_lines

sink_app = App(help="Look into what a sink has published.")


@dataclass(frozen=True, kw_only=True)
class InspectSinkFlags(Flags):
    """What can be given to `dedup sink inspect`."""

    where: Annotated[
        str,
        argument(
            "SERVERS|FOLDER",
            "Kafka's addresses, host:port, with commas; or the path or s3:// URI of a folder of "
            "files.",
        ),
    ]
    topic: Annotated[
        str | None, argument("[TOPIC]", "Topic that the sink writes to; leave it out for a folder.")
    ] = None
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


@command(InspectSinkFlags, "dedup sink inspect localhost:9092 orders-once --checkpoint checkpoint")
def inspect(flags: InspectSinkFlags) -> Done:
    """Say what a sink of Kafka, or a folder of files, has published, and what is unfinished.

    Of Kafka: of each slice, and whether open transactions hold readers back.
    Of a folder: whose it is, its last micro-batch, and what is staged.

    It reads, and changes nothing; a query may write meanwhile.
    """
    from dedup import tools
    from dedup.cli.sink.work import client_properties, refuse_flags_of_kafka

    if flags.topic is None:
        refuse_flags_of_kafka(flags)
        body = tools.inspect_files(flags.where, checkpoint=flags.checkpoint).to_json()
        return Done(OK, body, folder_lines(body))
    body = tools.inspect_sink(
        flags.where,
        flags.topic,
        markers=flags.markers,
        checkpoint=flags.checkpoint,
        query=flags.query,
        options=client_properties(flags.command_config),
    ).to_json()
    return Done(OK, body, sink_lines(body))


sink_app.command()(inspect)
