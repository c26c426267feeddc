"""Where records come from: Kafka topics, files, and IDs for records that have none."""
