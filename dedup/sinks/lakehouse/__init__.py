"""The sinks that commit each micro-batch once to a table of Delta Lake or Apache Iceberg."""
