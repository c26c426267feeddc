"""PostgreSQL as a sink: each micro-batch is committed to the table once."""
