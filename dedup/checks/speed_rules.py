"""The rule about what costs speed: how many partitions the state has."""

from __future__ import annotations

from dedup.checks.facts import HOW_CORES, HOW_SETTINGS, Facts, whole_number
from dedup.checks.findings import Assessment, Takes, costs, fine, unknown

#: Partitions per core up to which there is room to grow into for 6 to 13 % of a micro-batch.
PER_CORE_MAX = 4
_PARTITIONS = "spark.sql.shuffle.partitions"


def shuffle_partitions(facts: Facts) -> Assessment:
    """Every partition of the state costs a Python session in every micro-batch."""
    partitions, cores = facts.partitions, facts.cores
    if partitions is None:
        return unknown(
            f"Not known: {_PARTITIONS}. It becomes the number of state partitions, and "
            f"should be about the number of cores. {HOW_SETTINGS}"
        )
    have = f"{_PARTITIONS} is {partitions}"
    if facts.started:
        have = f"The state has {partitions} partitions"
        asked = whole_number(facts.settings.get(_PARTITIONS))
        if asked not in (None, partitions):
            have += f" (the checkpoint keeps that number, {_PARTITIONS}={asked} changes nothing)"
    if cores is None:
        return unknown(
            f"{have}, and each costs a Python session in every micro-batch; how many "
            f"cores there are is not known. {HOW_CORES}"
        )
    if cores <= partitions <= PER_CORE_MAX * cores:
        return fine(f"{have}, on {cores} cores: one to {PER_CORE_MAX} for each core is best.")
    harm = (
        f"{partitions / cores:.0f} for each of {cores} cores: each costs a "
        "Python session in every micro-batch, used or not (32 per core took three times as "
        "long as one per core)."
        if partitions > cores
        else f"so that {cores - partitions} of {cores} cores have nothing to do "
        "while records are judged."
    )
    if facts.started:
        harm += " This query keeps it for as long as it has this checkpoint."
    return costs(f"{have}, {harm}", f"{_PARTITIONS}={cores}", Takes.BEGINNING)
