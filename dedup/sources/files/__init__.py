"""Files read by the tasks themselves, with the values that Spark would read."""
