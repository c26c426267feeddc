"""Reads files in Python tasks, with exactly the values that Spark would read."""
