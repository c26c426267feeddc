/* The inner loops of dedup in plain C11, without Python; module*.c is the glue.
 *
 * Arrays come as bytes of any alignment and are read through the load helpers, which compile to
 * single loads. A function trusts its arguments only as far as its comment states; keys_ok must
 * have accepted a column before any other function reads it.
 */
#ifndef DEDUP_KERNEL_H
#define DEDUP_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && defined(__x86_64__)
#define DK_AVX2 1
#endif

#if defined(__GNUC__)
#define dk_prefetch(p) __builtin_prefetch(p)
#else
#define dk_prefetch(p) ((void)(p))
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define DK_BIG_ENDIAN 1
#else
#define DK_BIG_ENDIAN 0
#endif

/* Positions in hash tables take 32 bits, and 0 means none. */
#define DK_MAX_KEYS ((size_t)UINT32_MAX - 1)
#define DK_MAX_BLOCKS ((size_t)UINT32_MAX)

/* How far ahead to prefetch, in keys; less does not hide DRAM, more does not help. */
#define DK_AHEAD 32
/* Filters up to this size stay in cache, where prefetching only costs. */
#define DK_CACHED_BYTES ((size_t)256 * 1024)

typedef enum {
    DK_OK,
    DK_NO_MEMORY,
    DK_BAD_BLOCK,
    DK_BAD_HASH,
    DK_BAD_LENGTH,
    DK_BAD_STARTS,
    DK_BAD_TABLE,
    DK_BAD_TIME,
    DK_LATER,
    DK_UNSORTED,
} dk_status;

/* A column of n keys: key i is data[offsets[i] .. offsets[i + 1]). */
typedef struct {
    const uint8_t *data;
    size_t data_bytes;
    const uint8_t *offsets; /* n + 1 int64 of any alignment */
    size_t n;
} dk_keys;

/* ---- unaligned access, native byte order ---- */

static inline int64_t dk_i64(const uint8_t *p, size_t i)
{
    int64_t v;
    memcpy(&v, p + i * sizeof v, sizeof v);
    return v;
}

static inline uint64_t dk_u64(const uint8_t *p, size_t i)
{
    uint64_t v;
    memcpy(&v, p + i * sizeof v, sizeof v);
    return v;
}

static inline void dk_put64(uint8_t *p, size_t i, uint64_t v)
{
    memcpy(p + i * sizeof v, &v, sizeof v);
}

/* ---- unaligned access, little-endian: bytes that we persist or hash ---- */

static inline uint64_t dk_le64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
#if DK_BIG_ENDIAN
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline uint32_t dk_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint32_t dk_le16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static inline void dk_put_le32(uint8_t *p, uint32_t v)
{
#if DK_BIG_ENDIAN
    v = __builtin_bswap32(v);
#endif
    memcpy(p, &v, sizeof v);
}

static inline void dk_put_le64(uint8_t *p, uint64_t v)
{
#if DK_BIG_ENDIAN
    v = __builtin_bswap64(v);
#endif
    memcpy(p, &v, sizeof v);
}

/* ---- keys ---- */

static inline const uint8_t *dk_key(const dk_keys *keys, size_t i, size_t *length)
{
    int64_t start = dk_i64(keys->offsets, i);
    *length = (size_t)(dk_i64(keys->offsets, i + 1) - start);
    /* data may be NULL when all keys are empty */
    return *length ? keys->data + start : (const uint8_t *)"";
}

static inline bool dk_same(const dk_keys *a, size_t i, const dk_keys *b, size_t j)
{
    size_t la, lb;
    const uint8_t *pa = dk_key(a, i, &la), *pb = dk_key(b, j, &lb);
    return la == lb && memcmp(pa, pb, la) == 0;
}

/* True when offsets never fall and stay within the data; n and data_bytes must be true. */
bool dk_keys_ok(const dk_keys *keys);

/* ---- siphash.c: SipHash-1-3 of each key; out holds n uint64 ---- */

void dk_hash_scalar(const dk_keys *keys, const uint8_t key[16], uint8_t *out);

/* ---- sbbf.c: Parquet split-block Bloom filter; bits holds 8 * blocks uint32, blocks >= 1 ---- */

void dk_add_scalar(uint8_t *bits, size_t blocks, const uint8_t *hashes, size_t n);
/* Sets bit `index` of out[i] if the filter may hold hash i; leaves other bits. */
void dk_probe_scalar(const uint8_t *bits, size_t blocks, const uint8_t *hashes, size_t n,
                     unsigned index, uint8_t *out);

/* A part of a filter: the bits of k of its pages, one after another, and their hashes. */
typedef struct {
    const uint8_t *bits, *pages, *starts; /* k int64, rising; k + 1 int64, never falling */
    size_t k, blocks, page_blocks;        /* 1 or more, of the whole filter and of a page */
} dk_paged;

/* DK_UNSORTED, or DK_OK and *k pages; `pages` and `starts` have room for n and n + 1 int64. */
dk_status dk_filter_pages(const uint8_t *hashes, size_t n, size_t blocks, size_t page_blocks,
                          uint8_t *pages, uint8_t *starts, size_t *k);
/* out holds a uint8 for each hash. DK_BAD_HASH sets *bad to one outside its page. */
dk_status dk_probe_pages_scalar(const dk_paged *part, const uint8_t *hashes, uint8_t *out,
                                size_t *bad);

#ifdef DK_AVX2
dk_status dk_probe_pages_avx2(const dk_paged *part, const uint8_t *hashes, uint8_t *out,
                              size_t *bad);
void dk_hash_avx2(const dk_keys *keys, const uint8_t key[16], uint8_t *out);
void dk_add_avx2(uint8_t *bits, size_t blocks, const uint8_t *hashes, size_t n);
void dk_probe_avx2(const uint8_t *bits, size_t blocks, const uint8_t *hashes, size_t n,
                   unsigned index, uint8_t *out);
#endif

/* ---- hashtable.c ---- */

/* out[i] = position of the first key equal to key i. DK_NO_MEMORY or DK_OK. */
dk_status dk_first_occurrence(const dk_keys *keys, const uint8_t *hashes, uint8_t *out);

/* A join in two steps, so that the caller can allocate exactly `pairs` results. */
typedef struct {
    uint32_t *next;  /* next build key with the same bytes, + 1; 0 at the end */
    uint32_t *found; /* per probe key: first build key with its bytes, + 1; 0 for none */
    uint64_t pairs;
} dk_join;

/* On DK_NO_MEMORY nothing is held; otherwise call dk_join_free. pairs saturates at 2**64 - 1. */
dk_status dk_join_find(const dk_keys *build, const uint8_t *b_hashes, const dk_keys *probe,
                       const uint8_t *p_hashes, dk_join *join);
/* Writes `pairs` int64 to each of the two outputs. */
void dk_join_emit(const dk_join *join, size_t probes, uint8_t *probe_out, uint8_t *build_out);
void dk_join_free(dk_join *join);

/* ---- gather.c: keys in another order; index holds m int64 below keys->n ---- */

/* False, with the first bad index, if an index is negative or not below n. */
bool dk_index_ok(const uint8_t *index, size_t m, size_t n, size_t *bad);
/* Writes where each key will start: m + 1 int64. DK_NO_MEMORY if that exceeds 2**63. */
dk_status dk_take_size(const dk_keys *keys, const uint8_t *index, size_t m, uint8_t *out_offsets);
/* Writes the keys' bytes. */
void dk_take(const dk_keys *keys, const uint8_t *index, size_t m, uint8_t *out);

/* ---- sort.c: order by (hash, bytes, position); out holds n int64 ---- */

dk_status dk_sort_keys(const dk_keys *keys, const uint8_t *hashes, uint8_t *out);

/* ---- checksum.c: multilinear sums of pages; page_bytes is a multiple of 8, 8 or more ---- */

#define DK_MAX_PAGE_BYTES ((size_t)65536)

/* Fills the table; must have returned once before dk_page_sums is called. */
void dk_page_sums_ready(void);
/* out holds a uint64 for each page. */
void dk_page_sums(const uint8_t *data, size_t bytes, size_t page_bytes, uint8_t *out);

/* ---- blocks.c: look up each query key in its block; the query_block values are in range ---- */

/* Results for n keys: n int64 times, -1 if absent, and n uint64 digests, 0 without one; NULL if the
 * caller does not need them. */
typedef struct {
    uint8_t *times, *digests;
} dk_found;

/* DK_BAD_BLOCK sets *bad to the first damaged block. */
dk_status dk_blocks_find(const dk_keys *blocks, const uint8_t *query_block,
                         const dk_keys *queries, const dk_found *found, size_t *bad);

/* Whether the bytes are a block; looks query i up in one that is. */
bool dk_block_ok(const uint8_t *block, size_t bytes);
void dk_block_find(const uint8_t *block, const dk_keys *queries, size_t i, const dk_found *found);

/* Keys with their times and digests (NULL for none), and at which keys each of b blocks starts: b + 1 int64. */
typedef struct {
    const dk_keys *keys;
    const uint8_t *times, *digests, *starts;
    size_t b;
    bool wide;
} dk_packing;

/* Checks everything, and writes where each block starts: b + 1 int64. */
dk_status dk_blocks_size(const dk_packing *packing, uint8_t *out_offsets);
/* Writes the blocks to the places that dk_blocks_size found. */
void dk_blocks_pack(const dk_packing *packing, const uint8_t *out_offsets, uint8_t *out);

/* Counts keys and their bytes. DK_BAD_BLOCK sets *bad to the first damaged block. */
dk_status dk_blocks_count(const dk_keys *blocks, uint64_t *count, uint64_t *key_bytes, size_t *bad);
/* Writes the keys and times that dk_blocks_count counted: bytes, count + 1 and count int64. */
void dk_blocks_unpack(const dk_keys *blocks, uint8_t *data, uint8_t *offsets, uint8_t *times);
/* Writes the digests of as many keys: count uint64, 0 in blocks without. */
void dk_blocks_digests(const dk_keys *blocks, uint8_t *digests);

/* ---- xxh64.c ---- */

uint64_t dk_xxh64(const uint8_t *p, size_t bytes);

/* ---- table.c: segment blocks read directly in a RocksDB table ---- */

/* Smallest sizes of a block, and of its entry in a table, which bound their number. */
#define DK_MIN_BLOCK_BYTES 8
#define DK_MIN_ENTRY_BYTES (3 + DK_MIN_BLOCK_BYTES)

/* A table of t table blocks: the last number that each may hold, t uint32, and where each starts in
 * the file, t + 1 int64, with the end of the last. The context is part of the file's checksums. */
typedef struct {
    int fd;
    uint32_t context;
    const uint8_t *lasts, *starts;
    size_t t;
} dk_table;

/* Keys, and the number of the block that could hold each: int64 that never fall. */
typedef struct {
    const uint8_t *numbers;
    const dk_keys *keys;
} dk_asked;

/* The checksum of bytes at an offset of a file whose checksums have that context, 0 for none. */
uint32_t dk_table_checksum(const uint8_t *bytes, size_t n, uint32_t context, uint64_t offset);
/* DK_BAD_TABLE if anything is not as expected, or a block is missing. */
dk_status dk_table_find(const dk_table *table, const dk_asked *asked, const dk_found *found,
                        size_t *blocks_read);
/* Writes the blocks of all table blocks from `first` on, which are in data, one after another, and
 * where each of *n starts: *n + 1 int64. False if anything is not as expected. */
bool dk_table_unpack(const dk_table *table, size_t first, const uint8_t *data, uint8_t *out,
                     uint8_t *out_starts, size_t *n);

/* ---- scan.c ---- */

/* DK_UNSORTED when groups fall, or times do within a group. out holds n uint8. */
dk_status dk_scan_verdicts(const uint8_t *group, const uint8_t *time_ms, const uint8_t *known,
                           const uint8_t *droppable, size_t n, int64_t horizon_ms, uint8_t *out);

/* ---- uuid.c ---- */

/* out must hold data_bytes + n bytes, out_offsets n + 1 int64. Returns the bytes used. */
size_t dk_encode_uuid(const dk_keys *keys, uint8_t *out, uint8_t *out_offsets);
/* The inverse. out must hold 36 bytes for every 17 of the keys. False sets *bad to the first key
 * that encode_uuid cannot have made. */
bool dk_decode_uuid(const dk_keys *keys, uint8_t *out, uint8_t *out_offsets, size_t *bad);

#endif
