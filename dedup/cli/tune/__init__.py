"""`dedup tune`: measure choices of filter sizing, recommend one."""
