"""Parquet files to Parquet files around the operator, past Spark's own reader and writer."""
