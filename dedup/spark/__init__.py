"""The operators on Spark, around the engine in `dedup.core`.

Pack, group function and unpack are the three passes over a micro-batch. Where to find a rule:

======================================================= ================================
options of the operators, and their checks              `options`, `driver.checks`
from options to the plan that tasks receive             `driver.build`, `driver.plans`
rejects IDs that change when a record is read again     `driver.plan_steps`
IDs as key bytes, rows as blobs                         `id_encoding`, `executor.wire`
the birth certificate of a query, checked in tasks      `executor.layout`
one shard in a micro-batch                              `executor.call`, `executor.by_id`
which verdicts pass                                     `plan`, `executor.unpack`
======================================================= ================================
"""
