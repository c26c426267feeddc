/* The inner loops of dedup in plain C11, without Python. The files module*.c are the glue.
 *
 * Arrays are bytes of any alignment, which the load helpers read. A load helper compiles to a single
 * load. The caller must check the arguments, except where a function's comment says that it checks
 * them. dk_keys_ok must have accepted a column before any other function reads it.
 */
#ifndef DEDUP_KERNEL_H
#define DEDUP_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && defined(__x86_64__)
#define DK_AVX2 1
#include <cpuid.h>
/* Whether this machine supports AVX2. The module sets it when it is loaded. */
extern bool dk_have_avx2;
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

/* Largest number of keys, because a hash table stores position plus one in 32 bits. */
#define DK_MAX_KEYS ((size_t)UINT32_MAX - 1)
#define DK_MAX_BLOCKS ((size_t)UINT32_MAX)

/* How many keys ahead to prefetch. Fewer do not hide the latency of DRAM, more do not help. */
#define DK_AHEAD 32
/* Filters up to this size stay in the processor's cache, so prefetching them would only cost. */
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

/* True if offsets never fall and stay within the data. n and data_bytes must be correct. */
bool dk_keys_ok(const dk_keys *keys);

/* ---- siphash.c: SipHash-1-3 of each key. out has room for n uint64 ---- */

void dk_hash_scalar(const dk_keys *keys, const uint8_t key[16], uint8_t *out);

/* ---- sbbf.c: Parquet split-block Bloom filter. bits has 8 * blocks uint32, blocks >= 1 ---- */

void dk_add_scalar(uint8_t *bits, size_t blocks, const uint8_t *hashes, size_t n);
/* Sets bit `index` of out[i] if the filter may hold hash i. Changes no other bits. */
void dk_probe_scalar(const uint8_t *bits, size_t blocks, const uint8_t *hashes, size_t n,
                     unsigned index, uint8_t *out);

/* A part of a filter: the bits of k pages, one after another, and which hashes fall into each. */
typedef struct {
    const uint8_t *bits, *pages, *starts; /* k int64, rising; k + 1 int64, never falling */
    size_t k, blocks, page_blocks;        /* 1 or more, of the whole filter and of a page */
} dk_paged;

/* Returns DK_UNSORTED, or DK_OK and sets *k to the number of pages. `pages` has room for n int64,
 * `starts` for n + 1. */
dk_status dk_filter_pages(const uint8_t *hashes, size_t n, size_t blocks, size_t page_blocks,
                          uint8_t *pages, uint8_t *starts, size_t *k);
/* out has room for a uint8 per hash. DK_BAD_HASH sets *bad to a hash that is outside its page. */
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

/* Sets out[i] to the position of the first key equal to key i. Returns DK_NO_MEMORY or DK_OK. */
dk_status dk_first_occurrence(const dk_keys *keys, const uint8_t *hashes, uint8_t *out);

/* A join in two steps, so that the caller can allocate exactly `pairs` results. */
typedef struct {
    uint32_t *next;  /* next build key with the same bytes, + 1; 0 at the end */
    uint32_t *found; /* per probe key: first build key with its bytes, + 1; 0 for none */
    uint64_t pairs;
} dk_join;

/* The caller must call dk_join_free afterwards, except after DK_NO_MEMORY. The number of pairs is at
 * most 2**64 - 1. */
dk_status dk_join_find(const dk_keys *build, const uint8_t *b_hashes, const dk_keys *probe,
                       const uint8_t *p_hashes, dk_join *join);
/* Writes `pairs` int64 to each of the two outputs. */
void dk_join_emit(const dk_join *join, size_t probes, uint8_t *probe_out, uint8_t *build_out);
void dk_join_free(dk_join *join);

/* ---- gather.c: copies keys in another order. index has m int64 below keys->n ---- */

/* False if an index is negative or not below n. Then *bad is the place of the first such index. */
bool dk_index_ok(const uint8_t *index, size_t m, size_t n, size_t *bad);
/* Writes the offsets of the copied keys, m + 1 int64. DK_NO_MEMORY if an offset exceeds 2**63. */
dk_status dk_take_size(const dk_keys *keys, const uint8_t *index, size_t m, uint8_t *out_offsets);
/* Writes the bytes of the copied keys. */
void dk_take(const dk_keys *keys, const uint8_t *index, size_t m, uint8_t *out);

/* ---- sort.c: sorts keys by (hash, bytes, position). out has room for n int64 ---- */

dk_status dk_sort_keys(const dk_keys *keys, const uint8_t *hashes, uint8_t *out);

/* ---- checksum.c: checksums of pages. page_bytes is a multiple of 8, 8 or more ---- */

#define DK_MAX_PAGE_BYTES ((size_t)65536)

/* Fills the table of multipliers. Must have returned once before dk_page_sums is called. */
void dk_page_sums_ready(void);
/* out has room for a uint64 per page. */
void dk_page_sums(const uint8_t *data, size_t bytes, size_t page_bytes, uint8_t *out);

/* ---- blocks.c: looks up each query key in its block. query_block has valid positions ---- */

/* Results for n keys. times has n int64, -1 for an absent key. digests has n uint64, 0 for a key
 * without a digest, or is NULL if the caller needs no digests. */
typedef struct {
    uint8_t *times, *digests;
} dk_found;

/* DK_BAD_BLOCK sets *bad to the first damaged block. */
dk_status dk_blocks_find(const dk_keys *blocks, const uint8_t *query_block,
                         const dk_keys *queries, const dk_found *found, size_t *bad);

/* dk_block_ok returns whether the bytes are a block. dk_block_find looks query i up in a block that
 * dk_block_ok has accepted. */
bool dk_block_ok(const uint8_t *block, size_t bytes);
void dk_block_find(const uint8_t *block, const dk_keys *queries, size_t i, const dk_found *found);

/* Keys to pack into b blocks. digests is NULL if there are none. starts has b + 1 int64: block i
 * gets keys starts[i] to starts[i + 1] - 1. */
typedef struct {
    const dk_keys *keys;
    const uint8_t *times, *digests, *starts;
    size_t b;
    bool wide;
} dk_packing;

/* Checks the packing, and writes at which byte each block starts, b + 1 int64. */
dk_status dk_blocks_size(const dk_packing *packing, uint8_t *out_offsets);
/* Writes the blocks to the places that dk_blocks_size found. */
void dk_blocks_pack(const dk_packing *packing, const uint8_t *out_offsets, uint8_t *out);

/* Counts keys and their bytes. DK_BAD_BLOCK sets *bad to the first damaged block. */
dk_status dk_blocks_count(const dk_keys *blocks, uint64_t *count, uint64_t *key_bytes, size_t *bad);
/* Writes the bytes, offsets (count + 1 int64) and times (count int64) of the keys that
 * dk_blocks_count counted. */
void dk_blocks_unpack(const dk_keys *blocks, uint8_t *data, uint8_t *offsets, uint8_t *times);
/* Writes the digests of these keys, count uint64. The digest of a key in a block without digests
 * is 0. */
void dk_blocks_digests(const dk_keys *blocks, uint8_t *digests);

/* ---- xxh64.c ---- */

uint64_t dk_xxh64(const uint8_t *p, size_t bytes);

/* ---- table.c: segment blocks read directly in a RocksDB table ---- */

/* Smallest sizes of a block, and of its entry in a table. They bound how many there can be. */
#define DK_MIN_BLOCK_BYTES 8
#define DK_MIN_ENTRY_BYTES (3 + DK_MIN_BLOCK_BYTES)

/* A table of t table blocks. The last block number that each table block may hold is in t uint32.
 * The offsets where the table blocks start, and the end of the last one, are in t + 1 int64. All
 * checksums of the file include the context. */
typedef struct {
    int fd;
    uint32_t context;
    const uint8_t *lasts, *starts;
    size_t t;
} dk_table;

/* Keys to look up, and for each the number of the block that could hold it. The numbers are int64
 * and never fall. */
typedef struct {
    const uint8_t *numbers;
    const dk_keys *keys;
} dk_asked;

/* The checksum of bytes at an offset of a file. A context of 0 means that the file has none. */
uint32_t dk_table_checksum(const uint8_t *bytes, size_t n, uint32_t context, uint64_t offset);
/* Returns DK_BAD_TABLE if the file deviates from what this release writes, or a block is missing. */
dk_status dk_table_find(const dk_table *table, const dk_asked *asked, const dk_found *found,
                        size_t *blocks_read);
/* data has the table blocks from `first` on. Writes their blocks, one after another, and the
 * offsets where these *n blocks start, *n + 1 int64. False if data deviates from what this release
 * writes. */
bool dk_table_unpack(const dk_table *table, size_t first, const uint8_t *data, uint8_t *out,
                     uint8_t *out_starts, size_t *n);

/* ---- scan.c ---- */

/* Returns DK_UNSORTED if groups fall, or times fall within a group. out has room for n uint8. */
dk_status dk_scan_verdicts(const uint8_t *group, const uint8_t *time_ms, const uint8_t *known,
                           const uint8_t *droppable, size_t n, int64_t horizon_ms, uint8_t *out);

/* ---- uuid.c ---- */

/* out must have room for data_bytes + n bytes, and out_offsets for n + 1 int64. Returns the number
 * of bytes written. */
size_t dk_encode_uuid(const dk_keys *keys, uint8_t *out, uint8_t *out_offsets);
/* The inverse of dk_encode_uuid. out must have room for 36 bytes for every 17 bytes of keys. Returns
 * false, and sets *bad to the first such key, if dk_encode_uuid cannot have made a key. */
bool dk_decode_uuid(const dk_keys *keys, uint8_t *out, uint8_t *out_offsets, size_t *bad);

#endif
