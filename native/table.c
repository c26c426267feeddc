/* Reads segment blocks directly from RocksDB's block-based tables, format version 6 without
 * compression. The checksum of a table block is from XXH64, the file's context and its own place.
 *
 * This code never concludes that a block is absent. If the file deviates from what this release
 * writes, the result is DK_BAD_TABLE, and the caller asks RocksDB.
 */
#define _GNU_SOURCE
#include "kernel.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

/* Size of the trailer after each table block: its compression, which is none, and its checksum. */
#define TRAILER_BYTES 5
/* Size of an entry's key: the block's number, and RocksDB's 8 bytes for "value, sequence 0". */
#define ENTRY_KEY_BYTES 12
#define MAX_ENTRY_KEY_BYTES 16
/* A call reads up to this many bytes of table blocks, and also the blocks in gaps of up to this many
 * blocks, because reading a block costs as much as another call. */
#define READ_BYTES ((size_t)256 << 10)
#define GAP_BLOCKS 1

uint32_t dk_table_checksum(const uint8_t *bytes, size_t n, uint32_t context, uint64_t offset)
{
    uint32_t place = context ? context ^ ((uint32_t)offset + (uint32_t)(offset >> 32)) : 0;
    return (uint32_t)dk_xxh64(bytes, n) + place;
}

/* Whether the bytes are an intact table block that belongs at this offset, with its trailer. */
static bool whole(const uint8_t *block, size_t bytes, uint32_t context, uint64_t offset)
{
    if (bytes < TRAILER_BYTES + 4)
        return false;
    size_t size = bytes - TRAILER_BYTES;
    return block[size] == 0 &&
           dk_table_checksum(block, size + 1, context, offset) == dk_le32(block + size + 1);
}

/* ---- the entries of one table block ---- */

typedef struct {
    const uint8_t *p, *end;
    uint64_t least, most; /* what the next number may be */
    uint8_t key[MAX_ENTRY_KEY_BYTES];
} cursor;

static size_t start_of(const dk_table *table, size_t i)
{
    return (size_t)dk_u64(table->starts, i);
}

static uint32_t last_of(const dk_table *table, size_t i)
{
    uint32_t last;
    memcpy(&last, table->lasts + 4 * i, 4);
    return last;
}

/* Begins with the first entry of table block `i`; false if it is damaged. */
static bool begin(cursor *at, const dk_table *table, size_t i, const uint8_t *block)
{
    size_t start = start_of(table, i), bytes = start_of(table, i + 1) - start;
    if (!whole(block, bytes, table->context, start))
        return false;
    size_t size = bytes - TRAILER_BYTES;
    uint64_t restarts = dk_le32(block + size - 4);
    if (4 * restarts + 4 > size)
        return false;
    uint64_t least = i ? (uint64_t)last_of(table, i - 1) + 1 : 0;
    *at = (cursor){block, block + size - 4 - 4 * restarts, least, last_of(table, i), {0}};
    return true;
}

static bool varint(cursor *at, uint32_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 32 && at->p < at->end; shift += 7) {
        uint8_t byte = *at->p++;
        *value |= (uint32_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

typedef struct {
    uint32_t number, size;
    const uint8_t *bytes;
} id_block;

typedef enum { FOUND, END, DAMAGED } step;

/* Goes to the next segment block. The metadata entry ends the last table block. */
static step next(cursor *at, id_block *block)
{
    uint32_t shared, more;
    if (at->p == at->end)
        return END;
    if (!varint(at, &shared) || !varint(at, &more) || !varint(at, &block->size))
        return DAMAGED;
    if (shared > MAX_ENTRY_KEY_BYTES || more > MAX_ENTRY_KEY_BYTES - shared ||
        (uint64_t)more + block->size > (uint64_t)(at->end - at->p))
        return DAMAGED;
    memcpy(at->key + shared, at->p, more);
    block->bytes = at->p + more;
    at->p += more + block->size;
    if (shared + more == MAX_ENTRY_KEY_BYTES)
        return at->p == at->end ? END : DAMAGED;
    if (shared + more != ENTRY_KEY_BYTES || dk_le64(at->key + 4) != 1 ||
        block->size < DK_MIN_BLOCK_BYTES)
        return DAMAGED;
    const uint8_t *k = at->key;
    block->number = (uint32_t)k[0] << 24 | (uint32_t)k[1] << 16 | (uint32_t)k[2] << 8 | k[3];
    if (block->number < at->least || block->number > at->most)
        return DAMAGED;
    at->least = (uint64_t)block->number + 1;
    return FOUND;
}

/* ---- looking keys up ---- */

/* Queries `first` to `end` ask for table blocks `low` to `high`, which are read together. */
typedef struct {
    size_t first, end, low, high;
} span;

typedef struct {
    const dk_table *table;
    const dk_asked *asked;
    const dk_found *found;
    uint8_t *buffer;
    size_t buffer_bytes, blocks_read;
} search;

/* The first table block from `i` on that may hold the number, or t. */
static size_t holder(const dk_table *table, size_t i, uint64_t number)
{
    size_t step = 1, low = i, high = i;
    while (high < table->t && last_of(table, high) < number) {
        low = high + 1;
        high += step;
        step *= 2;
    }
    high = high < table->t ? high : table->t;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (last_of(table, middle) < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Finds the span of queries that begins at `first`. Its table blocks come after block `after`. */
static bool span_from(const search *s, size_t first, size_t after, span *found)
{
    const dk_table *table = s->table;
    *found = (span){first, first, 0, 0};
    for (size_t i = first; i < s->asked->keys->n; i++) {
        uint64_t number = dk_u64(s->asked->numbers, i);
        if (i > first && number == dk_u64(s->asked->numbers, i - 1)) {
            found->end = i + 1;
            continue;
        }
        size_t at = holder(table, i == first ? after : found->high, number);
        if (at == table->t)
            return false;
        if (i == first)
            found->low = at;
        else if (at > found->high + 1 + GAP_BLOCKS ||
                 start_of(table, at + 1) - start_of(table, found->low) > READ_BYTES)
            return true;
        found->high = at;
        found->end = i + 1;
    }
    return true;
}

/* Answers the queries of a span whose table blocks are in the buffer. */
static bool answer(search *s, const span *part)
{
    size_t i = part->first, from = start_of(s->table, part->low);
    for (size_t at = part->low; at <= part->high && i < part->end; at++) {
        if (dk_u64(s->asked->numbers, i) > last_of(s->table, at))
            continue;
        size_t start = start_of(s->table, at);
        cursor entries;
        id_block block;
        if (!begin(&entries, s->table, at, s->buffer + (start - from)))
            return false;
        while (i < part->end && dk_u64(s->asked->numbers, i) <= last_of(s->table, at)) {
            uint64_t number = dk_u64(s->asked->numbers, i);
            do
                if (next(&entries, &block) != FOUND)
                    return false;
            while (block.number < number);
            if (block.number != number || !dk_block_ok(block.bytes, block.size))
                return false;
            s->blocks_read++;
            for (; i < part->end && dk_u64(s->asked->numbers, i) == number; i++)
                dk_block_find(block.bytes, s->asked->keys, i, s->found);
        }
    }
    return i == part->end;
}

static bool room_for(search *s, size_t bytes)
{
    if (bytes <= s->buffer_bytes)
        return true;
    free(s->buffer);
    s->buffer_bytes = bytes > READ_BYTES ? bytes : READ_BYTES;
    s->buffer = malloc(s->buffer_bytes);
    if (!s->buffer)
        s->buffer_bytes = 0;
    return s->buffer != NULL;
}

/* Reads and answers a span. With `wait` off it only reads the page cache. If the data is not there,
 * it asks the operating system to fetch the data from the disk, and returns DK_LATER. */
static dk_status serve(search *s, const span *part, bool wait)
{
    size_t from = start_of(s->table, part->low);
    size_t bytes = start_of(s->table, part->high + 1) - from, have = 0;
    if (!room_for(s, bytes))
        return DK_NO_MEMORY;
#ifdef RWF_NOWAIT
    if (!wait) {
        struct iovec into = {s->buffer, bytes};
        ssize_t got = preadv2(s->table->fd, &into, 1, (off_t)from, RWF_NOWAIT);
        if (got != (ssize_t)bytes) {
            posix_fadvise(s->table->fd, (off_t)from, (off_t)bytes, POSIX_FADV_WILLNEED);
            return DK_LATER;
        }
        have = bytes;
    }
#endif
    while (have < bytes) {
        ssize_t got = pread(s->table->fd, s->buffer + have, bytes - have, (off_t)(from + have));
        if (got <= 0)
            return DK_BAD_TABLE;
        have += (size_t)got;
    }
    return answer(s, part) ? DK_OK : DK_BAD_TABLE;
}

dk_status dk_table_find(const dk_table *table, const dk_asked *asked, const dk_found *found,
                        size_t *blocks_read)
{
    search s = {table, asked, found, NULL, 0, 0};
    span part = {0, 0, 0, 0}, *later = NULL;
    size_t waiting = 0, room = 0;
    dk_status status = DK_OK;
    for (size_t i = 0; status == DK_OK && i < asked->keys->n; i = part.end) {
        if (!span_from(&s, i, part.high, &part)) {
            status = DK_BAD_TABLE;
            break;
        }
        status = serve(&s, &part, false);
        if (status != DK_LATER)
            continue;
        if (waiting == room) {
            room = 2 * room + 64;
            span *more = realloc(later, room * sizeof *later);
            if (!more) {
                status = DK_NO_MEMORY;
                break;
            }
            later = more;
        }
        later[waiting++] = part;
        status = DK_OK;
    }
    for (size_t k = 0; status == DK_OK && k < waiting; k++)
        status = serve(&s, &later[k], true);
    free(later);
    free(s.buffer);
    *blocks_read = s.blocks_read;
    return status;
}

/* ---- all blocks of a part of the table ---- */

bool dk_table_unpack(const dk_table *table, size_t first, const uint8_t *data, uint8_t *out,
                     uint8_t *out_starts, size_t *n)
{
    size_t used = 0;
    *n = 0;
    for (size_t i = first; i < table->t; i++) {
        cursor entries;
        id_block block;
        step result;
        if (!begin(&entries, table, i, data + (start_of(table, i) - start_of(table, first))))
            return false;
        while ((result = next(&entries, &block)) == FOUND) {
            dk_put64(out_starts, (*n)++, used);
            memcpy(out + used, block.bytes, block.size);
            used += block.size;
        }
        if (result == DAMAGED)
            return false;
    }
    dk_put64(out_starts, *n, used);
    return true;
}
