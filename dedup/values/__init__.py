"""Values that users and files give, read and checked. The engine uses this room too, so no I/O.

Where to find a rule:

======================================================= =============================
options: names, defaults, ranges, their texts           `option`
durations and sizes, as Spark users write them          `duration`
what a document may contain                             `parse`
======================================================= =============================
"""
