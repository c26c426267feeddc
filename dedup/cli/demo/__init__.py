"""`dedup demo`: a made-up stream, de-duplicated and checked."""
