"""The C extension. It fills buffers that the caller allocated; ``dedup.kernel`` documents it."""

from collections.abc import Sequence

from dedup.kernel._types import I64, U8, U32, U64

HAVE_AVX2: bool

def hash64(data: U8, offsets: I64, key: bytes, out: U64, simd: bool, /) -> None: ...
def filter_add(bits: U32, hashes: U64, simd: bool, /) -> None: ...
def filter_probe(filters: Sequence[U32], hashes: U64, out: U64, simd: bool, /) -> None: ...
def filter_pages(hashes: U64, blocks: int, page_blocks: int, pages: I64, starts: I64, /) -> int: ...
def filter_probe_pages(
    bits: U32,
    pages: I64,
    starts: I64,
    hashes: U64,
    blocks: int,
    page_blocks: int,
    out: U8,
    simd: bool,
    /,
) -> None: ...
def page_sums(data: U8, page_bytes: int, /) -> bytearray: ...
def first_occurrence(data: U8, offsets: I64, hashes: U64, out: I64, /) -> None: ...
def match(
    b_data: U8, b_offsets: I64, b_hashes: U64, p_data: U8, p_offsets: I64, p_hashes: U64, /
) -> tuple[bytearray, bytearray]: ...
def sort_keys(data: U8, offsets: I64, hashes: U64, out: I64, /) -> None: ...
def blocks_find(
    data: U8,
    block_offsets: I64,
    query_block: I64,
    q_data: U8,
    q_offsets: I64,
    out: I64,
    digests: U64 | None,
    /,
) -> None: ...
def blocks_encode(
    data: U8,
    offsets: I64,
    times_ms: I64,
    starts: I64,
    wide_times: bool,
    out_offsets: I64,
    digests: U64 | None,
    /,
) -> bytearray: ...
def blocks_decode(data: U8, block_offsets: I64, /) -> tuple[bytearray, bytearray, bytearray]: ...
def blocks_digests(data: U8, block_offsets: I64, /) -> bytearray: ...
def take_keys(data: U8, offsets: I64, index: I64, out_offsets: I64, /) -> bytearray: ...
def scan_verdicts(
    group: I64, time_ms: I64, known: U8, droppable: U8, horizon_ms: int, out: U8, /
) -> None: ...
def encode_uuid(data: U8, offsets: I64, out: U8, out_offsets: I64, /) -> int: ...
def decode_uuid(data: U8, offsets: I64, out: U8, out_offsets: I64, /) -> None: ...
def table_checksum(data: U8, context: int, offset: int, /) -> int: ...
def table_find(
    fd: int,
    context: int,
    lasts: U32,
    starts: I64,
    numbers: I64,
    q_data: U8,
    q_offsets: I64,
    out: I64,
    digests: U64 | None,
    /,
) -> int: ...
def table_unpack(
    context: int, lasts: U32, starts: I64, first: int, data: U8, out: U8, out_starts: I64, /
) -> int: ...
