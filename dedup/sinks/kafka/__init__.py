"""The sink that writes to Kafka and publishes each micro-batch of a query once."""
