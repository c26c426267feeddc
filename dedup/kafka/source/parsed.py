"""Names of the columns that the decoders of values add to Kafka's own."""

from __future__ import annotations

#: The fields of the value, null for a tombstone and for a poison record.
FIELDS = "__fields"
#: Why the value cannot be read; null where it can.
CAUSE = "__cause"
