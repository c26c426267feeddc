"""Delta Lake and Apache Iceberg tables as sinks: each micro-batch is committed once."""
