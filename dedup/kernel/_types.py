"""Array types of the kernel, and the shape that every path of it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

U8: TypeAlias = npt.NDArray[np.uint8]
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
I64: TypeAlias = npt.NDArray[np.int64]


class Kernel(Protocol):
    """One implementation of the functions that ``dedup.kernel`` documents."""

    @property
    def name(self) -> str:
        """Value of ``dedup.kernel.PATH`` when this one is in use."""

    def hash64(self, data: U8, offsets: I64, key: bytes) -> U64: ...

    def filter_add(self, bits: U32, hashes: U64) -> None: ...

    def filter_probe(self, filters: Sequence[U32], hashes: U64) -> U64: ...

    def filter_pages(self, hashes: U64, blocks: int, page_blocks: int) -> tuple[I64, I64]: ...

    def filter_probe_pages(
        self, bits: U32, pages: I64, starts: I64, hashes: U64, blocks: int, page_blocks: int
    ) -> U8: ...

    def page_sums(self, data: U8, page_bytes: int) -> U64: ...

    def first_occurrence(self, data: U8, offsets: I64, hashes: U64) -> I64: ...

    def match(
        self, b_data: U8, b_offsets: I64, b_hashes: U64, p_data: U8, p_offsets: I64, p_hashes: U64
    ) -> tuple[I64, I64]: ...

    def sort_keys(self, data: U8, offsets: I64, hashes: U64) -> I64: ...

    def take_keys(self, data: U8, offsets: I64, index: I64) -> tuple[U8, I64]: ...

    def blocks_find(
        self, data: U8, block_offsets: I64, query_block: I64, q_data: U8, q_offsets: I64
    ) -> I64: ...

    def blocks_encode(
        self, data: U8, offsets: I64, times_ms: I64, starts: I64, wide_times: bool
    ) -> tuple[U8, I64]: ...

    def blocks_decode(self, data: U8, block_offsets: I64) -> tuple[U8, I64, I64]: ...

    def scan_verdicts(
        self, group: I64, time_ms: I64, known: U8, droppable: U8, horizon_ms: int
    ) -> U8: ...

    def encode_uuid(self, data: U8, offsets: I64) -> tuple[U8, I64]: ...
    def decode_uuid(self, data: U8, offsets: I64) -> tuple[U8, I64]: ...
