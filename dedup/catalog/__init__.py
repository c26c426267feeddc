"""Segments and everything else that a query keeps at its catalog root.

Where to find a rule:

======================================================= =============================
objects appear whole and durable, or not at all         `dedup.storage`
names of objects, their formats                         `layout`, ``FORMATS.md``
settings that never change: the birth certificate       `certificate`, `compatibility`
segments and their filters are read, checked, rebuilt   `view`, `sidecars`
runs of a query, and branches of its history            `gc.lineage`
what is an orphan, and who may delete it                `gc.sweep`, `gc.housekeeping`
a user deletes orphans (`dedup catalog vacuum`)         `dedup.tools.repair.vacuum`
expired segments that wait for their deletion           `gc.pending_lists`
a lost checkpoint, a damaged segment                    `backup`, `accepted_loss`
======================================================= =============================
"""
