"""Sinks that publish each micro-batch whole and once.

Where to find a rule:

======================================================= ================================
a task or driver fences earlier owners of a slot        `protocol`, and each ``slots``
a micro-batch runs again: what is published, what not   `protocol`, `single_commit`
other rows than before: the content hash                `content`, `marker`
lost markers, an older checkpoint, another owner        `ledger`, `output_owner`
work of tasks and driver that all sinks share           `work`, `slot_work`
formats, functions and options of a sink                `kind`, `formats`, `options`
======================================================= ================================
"""
