"""Decodes keys and values of Kafka's records from JSON, in tasks.

The values of a batch become the lines of one text, which `JsonReader` reads at its two speeds.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import pyarrow as pa

from dedup.sources.files.json_input import JsonReader
from dedup.sources.files.json_text import BLANKS, parsed
from dedup.sources.files.text_input import MAX_RECORD_BYTES, TOO_LONG
from dedup.sources.files.text_values import Spelling, Unfit
from dedup.sources.kafka.decoder import BytesDecoder, Poison

_BLANKS = BLANKS.encode()


class JsonDecoder(BytesDecoder):
    """Decodes values of which each is exactly one object.

    Raises TypeError for a type that JSON cannot hold, and ValueError for a wrong pattern or zone.
    """

    def __init__(self, kind: pa.StructType, spelling: Spelling) -> None:
        self.type, self._spelling = kind, spelling
        # A process keeps the reader, which learns of fields that no column has.
        self._reader = JsonReader(pa.schema(list(kind)), spelling, line_end=b"\n")

    def __reduce__(self) -> tuple[type[JsonDecoder], tuple[pa.StructType, Spelling]]:
        return JsonDecoder, (self.type, self._spelling)

    def decode(self, data: bytes) -> NoReturn:
        """Raise Poison for a value that does not begin an object, or is too long."""
        if not data:
            raise Poison("It is empty.")
        if len(data) > MAX_RECORD_BYTES:
            raise Poison(TOO_LONG)
        try:
            parsed(data)
        except Unfit as error:
            raise Poison(str(error)) from None
        raise Poison("It is JSON, but not an object.")

    def decoded(self, values: list[bytes | None]) -> tuple[pa.Array, list[str | None]]:
        causes: list[str | None] = [None] * len(values)
        lines, places = [], []
        for place, value in enumerate(values):
            text = value and value.strip(_BLANKS)
            if text and text.startswith(b"{") and len(text) <= MAX_RECORD_BYTES:
                # Both are blanks, and JSON has neither within a text.
                lines.append(text.replace(b"\n", b"\r"))
                places.append(place)
            elif text is not None:
                _, (causes[place],) = super().decoded([text])
        rows = self._reader.read(b"\n".join(lines))
        starts = np.cumsum([0, *(len(line) + 1 for line in lines)])
        bad = np.searchsorted(starts, [record.offset for record in rows.bad])
        for at, record in zip(bad.tolist(), rows.bad, strict=True):
            causes[places[at]] = record.reason
        numbers = np.full(len(values), -1)
        numbers[np.delete(np.array(places, np.int64), bad)] = np.arange(len(rows.good))
        return rows.good.to_struct_array().take(pa.array(numbers, mask=numbers < 0)), causes
