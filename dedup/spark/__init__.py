"""The Spark shell round the core: pack, group function, unpack, checks, metrics."""
