"""The engine: pure functions without Spark, clock, randomness or I/O.

Where to find a rule:

======================================================= =============================
two records are duplicates at most a horizon apart      `horizon`
clock of a source partition, late and GC watermark      `clocks`
null IDs, null, future and late timestamps              `admission`
arrival order and verdicts within a micro-batch         `arrival`
a micro-batch that is replayed gets the same verdicts   `shard`
a duplicate with another payload is a conflict          `payload`
tail, then filters, then the exact catalog              `lookup`
target rate of false positives                          `policy`, `sizing`
what a shard remembers, and what has expired            `manifest`, `bucket`
sealing, merging and deletion of segments               `upkeep`, `merge_choice`
producers: sequences, gaps, fencing of old epochs       `sequence`
======================================================= =============================
"""
