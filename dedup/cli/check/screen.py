"""What `dedup check` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dedup.cli.findings_screen import WIDTH, findings_lines, summary_line
from dedup.cli.terminal import Terminal
from dedup.tools.check.findings import Finding


def show(body: Mapping[str, Any], findings: Sequence[Finding], *, fold: bool) -> None:
    """Print which query was looked over, the findings, and how many there are."""
    console = Terminal()
    name = f" ({body['name']})" if body["name"] else ""
    since = (
        "not started yet" if body["batch_id"] is None else f"as of micro-batch {body['batch_id']}"
    )
    width = min(WIDTH, console.width) if console.is_terminal else WIDTH
    for line in (
        f"query {body['query_id']}{name}, {since}",
        *findings_lines(findings, width, fold=fold),
        summary_line(findings),
    ):
        console.print(line, soft_wrap=True)
