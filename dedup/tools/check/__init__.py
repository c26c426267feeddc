"""`dedup check`: what is known of a query, and rules that judge it before it bites."""
