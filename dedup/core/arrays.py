"""Types of the arrays that the engine passes round."""

from dedup.kernel._types import BOOL as BOOL
from dedup.kernel._types import I64 as I64
from dedup.kernel._types import U8 as U8
from dedup.kernel._types import U64 as U64
