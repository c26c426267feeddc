"""`dedup watch`: whether a running query keeps up."""
