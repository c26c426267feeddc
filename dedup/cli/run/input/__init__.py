"""The files that `dedup run` reads: their names, columns and records."""
