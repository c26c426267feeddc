"""Records of Kafka topics as a DataFrame, with identities and clocks that `dedup_by_id` can use."""
