"""`dedup tune`: measure what a choice of options would cost before a query runs with it."""
