"""`dedup check`: collect the facts of a query, and judge them by rules before they do harm."""
