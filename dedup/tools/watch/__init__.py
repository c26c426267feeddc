"""Metrics of a running query: the metrics log, Prometheus, a dashboard and alert rules."""
