"""`dedup tune`: what a choice of options would cost, measured before a query runs with it."""
