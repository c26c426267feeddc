"""`dedup catalog`: look into a catalog and look after it."""
