"""Names of the columns that the decoders of values add to Kafka's own."""

from __future__ import annotations

#: The fields of the value, null for a tombstone and for a poison record; and why the value cannot
#: be read, null if it can.
from dedup.spark.driver.strict_json import CAUSE as CAUSE
from dedup.spark.driver.strict_json import FIELDS as FIELDS
