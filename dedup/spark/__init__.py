"""The Spark shell round the core: pack, group function, unpack, checks, metrics.

Where to find a rule:

======================================================= ================================
options of the operators, and their checks              `options`, `driver.checks`
from options to the plan that tasks receive             `driver.build`, `driver.plans`
an ID or timestamp that changes when read again         `driver.plan_steps`
IDs as key bytes, rows as blobs                         `id_encoding`, `executor.wire`
a task knows its query, and compares the certificate    `executor.task`
one shard in a micro-batch                              `executor.call`, `executor.by_id`
which verdicts pass                                     `plan`, `executor.unpack`
======================================================= ================================
"""
