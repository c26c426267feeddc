"""Pure core: keys, filters, buckets, clocks and verdicts. No Spark, clock, randomness or I/O."""
