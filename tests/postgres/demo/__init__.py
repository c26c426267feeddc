"""`make demo-postgres`: Kafka to PostgreSQL, the query killed and the server restarted."""
