"""The sink that writes to PostgreSQL and commits each micro-batch of a query once."""
