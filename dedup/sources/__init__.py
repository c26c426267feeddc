"""Sources of records: Kafka topics and files. `record_id` makes IDs for records without an ID."""
