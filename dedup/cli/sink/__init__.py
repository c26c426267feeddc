"""`dedup sink`: look into a sink."""
