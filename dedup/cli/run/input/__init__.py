"""Files that `dedup run` reads: their names, columns and records."""
