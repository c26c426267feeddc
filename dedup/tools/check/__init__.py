"""`dedup check`: collect the facts of a query, and judge the facts by rules."""
