"""`dedup tune`: measure what options cost before a query runs with them."""
