"""`dedup compact`: fewer and larger files in an output."""
