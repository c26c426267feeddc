"""`dedup explain`: what a query remembers of one record ID."""
