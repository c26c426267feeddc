"""What a query's progress tells of the Kafka sources it reads."""

from __future__ import annotations

import json
from typing import Any


def end_offsets(progress: Any) -> dict[str, dict[int, int]]:
    """Return up to where a micro-batch read Kafka: by topic and partition the next offset.

    Parameters
    ----------
    progress : StreamingQueryProgress
        Sources without new records in the micro-batch may be absent; so are other sources.
    """
    found: dict[str, dict[int, int]] = {}
    for source in progress.sources:
        if not str(source.description).startswith("KafkaV2["):
            continue
        for topic, partitions in _parsed(source.endOffset).items():
            known = found.setdefault(topic, {})
            for number, offset in partitions.items():
                # Two sources may read one partition: what both have read is done.
                other = known.get(int(number), int(offset))
                known[int(number)] = min(other, int(offset))
    return found


def _parsed(offset: Any) -> dict[str, dict[str, int]]:
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, dict) else {}
