"""`dedup check`: judge the settings of a query."""
