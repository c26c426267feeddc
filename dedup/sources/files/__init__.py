"""Files that tasks read themselves, with the values that Spark would read."""
