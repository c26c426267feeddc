/* Look up, pack and unpack segment blocks, which are the values in the catalog's SST files.
 *
 *   u8 format = 1 | u8 flags (1: one length for all; 2: 8-byte times; 4: digests) | u16 count n
 *   u32 length, or u32 lengths[n] | u32 or u64 times[n] | u64 digests[n] | the keys' bytes
 *
 * Numbers are little-endian. A block is damaged if it is longer or shorter than this, holds no
 * keys, or has a time of 2**63 or more.
 */
#include "kernel.h"

#define FORMAT 1
#define ONE_LENGTH 1
#define WIDE_TIMES 2
#define DIGESTS 4

typedef struct {
    const uint8_t *lengths, *times, *digests, *keys; /* digests: NULL if there are none */
    size_t n, time_bytes;
    bool one_length;
} block;

static size_t length_of(const block *b, size_t i)
{
    return dk_le32(b->lengths + (b->one_length ? 0 : 4 * i));
}

static int64_t time_of(const block *b, size_t i)
{
    const uint8_t *p = b->times + i * b->time_bytes;
    return b->time_bytes == 8 ? (int64_t)dk_le64(p) : (int64_t)dk_le32(p);
}

static uint64_t digest_of(const block *b, size_t i)
{
    return b->digests ? dk_le64(b->digests + 8 * i) : 0;
}

/* Finds the parts of a block, which must contain at least its header. */
static block parts_of(const uint8_t *p)
{
    block b;
    b.n = dk_le16(p + 2);
    b.one_length = (p[1] & ONE_LENGTH) != 0;
    b.time_bytes = p[1] & WIDE_TIMES ? 8 : 4;
    b.lengths = p + 4;
    b.times = b.lengths + (b.one_length ? 4 : 4 * b.n);
    b.keys = b.times + b.n * b.time_bytes;
    b.digests = NULL;
    if (p[1] & DIGESTS) {
        b.digests = b.keys;
        b.keys += 8 * b.n;
    }
    return b;
}

/* Whether the bytes are a block. Reads nothing before it has compared the sizes. */
bool dk_block_ok(const uint8_t *p, size_t size)
{
    if (size < DK_MIN_BLOCK_BYTES || p[0] != FORMAT || dk_le16(p + 2) == 0 ||
        (p[1] & ~(ONE_LENGTH | WIDE_TIMES | DIGESTS)))
        return false;
    size_t n = dk_le16(p + 2);
    size_t head = 4 + (p[1] & ONE_LENGTH ? 4 : 4 * n) + n * (p[1] & WIDE_TIMES ? 8 : 4) +
                  (p[1] & DIGESTS ? 8 * n : 0);
    if (head > size)
        return false;
    block b = parts_of(p);
    /* 64 bits hold the sum, because it is of at most 2**16 lengths below 2**32. */
    uint64_t key_bytes = b.one_length ? (uint64_t)n * length_of(&b, 0) : 0;
    for (size_t i = 0; !b.one_length && i < n; i++)
        key_bytes += length_of(&b, i);
    if (key_bytes != size - head)
        return false;
    for (size_t i = 0; b.time_bytes == 8 && i < n; i++)
        if (time_of(&b, i) < 0)
            return false;
    return true;
}

/* The position of a key in a block, or -1. */
static int64_t find_one_length(const block *b, const uint8_t *key, size_t length)
{
    if (length_of(b, 0) != length)
        return -1;
    const uint8_t *p = b->keys;
    if (length >= 8) {
        uint64_t start = dk_u64(key, 0);
        for (size_t i = 0; i < b->n; i++, p += length)
            if (dk_u64(p, 0) == start && dk_u64(p + length - 8, 0) == dk_u64(key + length - 8, 0) &&
                memcmp(p, key, length) == 0)
                return (int64_t)i;
        return -1;
    }
    for (size_t i = 0; i < b->n; i++, p += length)
        if (memcmp(p, key, length) == 0)
            return (int64_t)i;
    return -1;
}

static int64_t find(const block *b, const uint8_t *key, size_t length)
{
    if (b->one_length)
        return find_one_length(b, key, length);
    const uint8_t *p = b->keys;
    for (size_t i = 0; i < b->n; i++) {
        size_t held = length_of(b, i);
        if (held == length && memcmp(p, key, length) == 0)
            return (int64_t)i;
        p += held;
    }
    return -1;
}

void dk_block_find(const uint8_t *p, const dk_keys *queries, size_t i, const dk_found *found)
{
    block b = parts_of(p);
    size_t length;
    const uint8_t *key = dk_key(queries, i, &length);
    int64_t at = find(&b, key, length);
    dk_put64(found->times, i, (uint64_t)(at < 0 ? -1 : time_of(&b, (size_t)at)));
    if (found->digests)
        dk_put64(found->digests, i, at < 0 ? 0 : digest_of(&b, (size_t)at));
}

dk_status dk_blocks_find(const dk_keys *blocks, const uint8_t *query_block,
                         const dk_keys *queries, const dk_found *found, size_t *bad)
{
    size_t size;
    for (size_t i = 0; i < blocks->n; i++) {
        const uint8_t *p = dk_key(blocks, i, &size);
        if (!dk_block_ok(p, size)) {
            *bad = i;
            return DK_BAD_BLOCK;
        }
    }
    for (size_t i = 0; i < queries->n; i++)
        dk_block_find(dk_key(blocks, (size_t)dk_i64(query_block, i), &size), queries, i, found);
    return DK_OK;
}

/* ---- packing ---- */

#define MAX_IN_BLOCK 0xffff

/* Whether keys `first` to `last`, at least one key, have the same length. */
static bool lengths_same(const dk_keys *keys, size_t first, size_t last, bool *fit)
{
    int64_t before = dk_i64(keys->offsets, first);
    int64_t length = dk_i64(keys->offsets, first + 1) - before, longest = 0;
    bool same = true;
    for (size_t i = first + 1; i <= last; i++) {
        int64_t offset = dk_i64(keys->offsets, i);
        same &= offset - before == length;
        longest |= offset - before;
        before = offset;
    }
    *fit = longest <= UINT32_MAX;
    return same;
}

dk_status dk_blocks_size(const dk_packing *packing, uint8_t *out_offsets)
{
    const dk_keys *keys = packing->keys;
    uint64_t times = 0;
    for (size_t i = 0; i < keys->n; i++)
        times |= dk_u64(packing->times, i);
    if (times > (packing->wide ? (uint64_t)INT64_MAX : UINT32_MAX))
        return DK_BAD_TIME;
    uint64_t first = 0, at = 0;
    if (dk_u64(packing->starts, 0) != 0)
        return DK_BAD_STARTS;
    dk_put64(out_offsets, 0, 0);
    for (size_t i = 0; i < packing->b; i++) {
        /* A negative number is a large one here. */
        uint64_t last = dk_u64(packing->starts, i + 1);
        if (last <= first || last > keys->n || last - first > MAX_IN_BLOCK)
            return DK_BAD_STARTS;
        bool fit, same = lengths_same(keys, (size_t)first, (size_t)last, &fit);
        if (!fit)
            return DK_BAD_LENGTH;
        uint64_t n = last - first;
        at += 4 + (same ? 4 : 4 * n) + n * (packing->wide ? 8 : 4) + (packing->digests ? 8 * n : 0);
        at += dk_u64(keys->offsets, (size_t)last) - dk_u64(keys->offsets, (size_t)first);
        dk_put64(out_offsets, i + 1, at);
        first = last;
    }
    return first == keys->n ? DK_OK : DK_BAD_STARTS;
}

void dk_blocks_pack(const dk_packing *packing, const uint8_t *out_offsets, uint8_t *out)
{
    const dk_keys *keys = packing->keys;
    size_t first = 0;
    for (size_t i = 0; i < packing->b; i++) {
        size_t last = (size_t)dk_i64(packing->starts, i + 1), n = last - first;
        int64_t from = dk_i64(keys->offsets, first), to = dk_i64(keys->offsets, last);
        size_t key_bytes = (size_t)(to - from), time_bytes = n * (packing->wide ? 8 : 4);
        size_t digest_bytes = packing->digests ? 8 * n : 0;
        size_t size = (size_t)(dk_i64(out_offsets, i + 1) - dk_i64(out_offsets, i));
        bool same = size - time_bytes - digest_bytes - key_bytes == 8;
        uint8_t *p = out + dk_i64(out_offsets, i);
        dk_put_le32(p, FORMAT | (same ? ONE_LENGTH << 8 : 0) |
                           (packing->wide ? WIDE_TIMES << 8 : 0) |
                           (packing->digests ? DIGESTS << 8 : 0) | (uint32_t)n << 16);
        p += 4;
        for (size_t k = first; k < (same ? first + 1 : last); k++, p += 4)
            dk_put_le32(p, (uint32_t)(dk_i64(keys->offsets, k + 1) - dk_i64(keys->offsets, k)));
        if (packing->wide)
            for (size_t k = 0; k < n; k++)
                dk_put_le64(p + 8 * k, dk_u64(packing->times, first + k));
        else
            for (size_t k = 0; k < n; k++)
                dk_put_le32(p + 4 * k, (uint32_t)dk_u64(packing->times, first + k));
        p += time_bytes;
        for (size_t k = 0; packing->digests && k < n; k++)
            dk_put_le64(p + 8 * k, dk_u64(packing->digests, first + k));
        if (key_bytes)
            memcpy(p + digest_bytes, keys->data + from, key_bytes);
        first = last;
    }
}

/* ---- unpacking ---- */

dk_status dk_blocks_count(const dk_keys *blocks, uint64_t *count, uint64_t *key_bytes, size_t *bad)
{
    *count = *key_bytes = 0;
    for (size_t i = 0; i < blocks->n; i++) {
        size_t size;
        const uint8_t *p = dk_key(blocks, i, &size);
        if (!dk_block_ok(p, size)) {
            *bad = i;
            return DK_BAD_BLOCK;
        }
        block b = parts_of(p);
        *count += b.n;
        *key_bytes += (size_t)(p + size - b.keys);
    }
    return DK_OK;
}

void dk_blocks_unpack(const dk_keys *blocks, uint8_t *data, uint8_t *offsets, uint8_t *times)
{
    size_t at = 0, used = 0;
    for (size_t i = 0; i < blocks->n; i++) {
        size_t size;
        const uint8_t *p = dk_key(blocks, i, &size);
        block b = parts_of(p);
        size_t start = used;
        if (b.one_length) {
            size_t length = length_of(&b, 0);
            for (size_t k = 0; k < b.n; k++, used += length)
                dk_put64(offsets, at + k, used);
        } else {
            for (size_t k = 0; k < b.n; used += length_of(&b, k++))
                dk_put64(offsets, at + k, used);
        }
        if (b.time_bytes == 8)
            for (size_t k = 0; k < b.n; k++)
                dk_put64(times, at + k, dk_le64(b.times + 8 * k));
        else
            for (size_t k = 0; k < b.n; k++)
                dk_put64(times, at + k, dk_le32(b.times + 4 * k));
        if (used > start)
            memcpy(data + start, b.keys, used - start);
        at += b.n;
    }
    dk_put64(offsets, at, used);
}

void dk_blocks_digests(const dk_keys *blocks, uint8_t *digests)
{
    size_t at = 0;
    for (size_t i = 0; i < blocks->n; i++) {
        size_t size;
        block b = parts_of(dk_key(blocks, i, &size));
        for (size_t k = 0; k < b.n; k++)
            dk_put64(digests, at++, digest_of(&b, k));
    }
}
