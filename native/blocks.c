/* Segment blocks: the values of the catalog's SST files.
 *
 *   u8 format = 1 | u8 flags (1: one length for all; 2: 8-byte times) | u16 count n
 *   u32 length, or u32 lengths[n] | u32 or u64 times[n] | the keys' bytes
 *
 * Little-endian. A block that is not exactly this long, holds no keys or has a time of 2**63 or
 * more is damaged.
 */
#include "kernel.h"

#define FORMAT 1
#define ONE_LENGTH 1
#define WIDE_TIMES 2

typedef struct {
    const uint8_t *lengths, *times, *keys;
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

/* Finds the parts of a block that is known to be good, or at least to hold its header. */
static block parts_of(const uint8_t *p)
{
    block b;
    b.n = dk_le16(p + 2);
    b.one_length = (p[1] & ONE_LENGTH) != 0;
    b.time_bytes = p[1] & WIDE_TIMES ? 8 : 4;
    b.lengths = p + 4;
    b.times = b.lengths + (b.one_length ? 4 : 4 * b.n);
    b.keys = b.times + b.n * b.time_bytes;
    return b;
}

/* All sizes are compared before anything behind them is read. */
static bool block_ok(const uint8_t *p, size_t size)
{
    if (size < 8 || p[0] != FORMAT || (p[1] & ~(ONE_LENGTH | WIDE_TIMES)) || dk_le16(p + 2) == 0)
        return false;
    size_t n = dk_le16(p + 2);
    size_t head = 4 + (p[1] & ONE_LENGTH ? 4 : 4 * n) + n * (p[1] & WIDE_TIMES ? 8 : 4);
    if (head > size)
        return false;
    block b = parts_of(p);
    /* At most 2**16 keys of less than 2**32 bytes: 64 bits hold the sum. */
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
                return time_of(b, i);
        return -1;
    }
    for (size_t i = 0; i < b->n; i++, p += length)
        if (memcmp(p, key, length) == 0)
            return time_of(b, i);
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
            return time_of(b, i);
        p += held;
    }
    return -1;
}

dk_status dk_blocks_find(const dk_keys *blocks, const uint8_t *query_block,
                         const dk_keys *queries, uint8_t *out, size_t *bad)
{
    size_t size;
    for (size_t i = 0; i < blocks->n; i++) {
        const uint8_t *p = dk_key(blocks, i, &size);
        if (!block_ok(p, size)) {
            *bad = i;
            return DK_BAD_BLOCK;
        }
    }
    for (size_t i = 0; i < queries->n; i++) {
        block b = parts_of(dk_key(blocks, (size_t)dk_i64(query_block, i), &size));
        size_t length;
        const uint8_t *key = dk_key(queries, i, &length);
        dk_put64(out, i, (uint64_t)find(&b, key, length));
    }
    return DK_OK;
}
