"""Kafka topics as a DataFrame, with record IDs and clocks for `dedup_by_id`."""
