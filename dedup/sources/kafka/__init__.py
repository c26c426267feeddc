"""Reads Kafka topics as a DataFrame, with the columns that `dedup_by_id` needs."""
