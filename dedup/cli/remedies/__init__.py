"""`dedup remedies`: what to do about an error."""
