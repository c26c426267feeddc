"""`make demo-kafka`: exactly once from Kafka to Kafka on a real broker, under kills.

It is a command of this repository and no part of what is installed, for its broker comes from the
tests (`tests.kafka.broker`).
"""
