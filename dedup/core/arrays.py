"""Types of the engine's arrays, and the offsets of their columns."""

from dedup.kernel.arrays import BOOL as BOOL
from dedup.kernel.arrays import I64 as I64
from dedup.kernel.arrays import U8 as U8
from dedup.kernel.arrays import U64 as U64
from dedup.kernel.arrays import offsets_of as offsets_of
