"""The files that `dedup run` reads: which, with what columns, and what is wrong with them."""
