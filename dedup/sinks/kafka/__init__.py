"""Kafka as a sink: each micro-batch of a query is published once."""
