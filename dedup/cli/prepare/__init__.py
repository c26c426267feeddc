"""`dedup prepare`: quicker starts of Spark on this machine."""
