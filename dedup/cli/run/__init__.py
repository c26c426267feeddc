"""`dedup run`: de-duplicate a folder of files."""
