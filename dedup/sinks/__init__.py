"""Sinks that publish each micro-batch whole and once.

Where to find a rule:

======================================================= ================================
a task or driver fences earlier owners of a slot        `protocol`, and each ``slots``
what to publish if a micro-batch runs again             `protocol`, `single_commit`
how the content hash shows that rows have changed       `content`, `marker`
lost markers, an older checkpoint, another owner        `ledger`, `output_owner`
slices staged in files, and the manifest of them        `slice_store`
work of tasks and driver that all sinks share           `work`, `slot_work`
rows, bytes, retries and time, for listeners            `figures`
formats, functions and options of a sink                `kind`, `formats`, `options`
functions of users that a replay must not repeat        `side_effects`
======================================================= ================================
"""
