/* Finds equal keys, with a hash table in open addressing over the caller's hashes.
 *
 * A slot has 8 bytes: the low half of the hash as a tag, and the position of the key plus one. The
 * table is at most two thirds full. If the hashes are equal, the bytes of the keys are compared. So
 * different keys with the same hash make the table slow, but never wrong.
 */
#include "kernel.h"

#include <stdlib.h>

#define AHEAD 16

typedef struct {
    uint64_t *slots;
    uint64_t mask;
    unsigned shift;
} table;

static dk_status table_make(table *t, size_t n)
{
    uint64_t wanted = (uint64_t)n + n / 2 + 1;
    unsigned bits = 4;
    while ((UINT64_C(1) << bits) < wanted)
        bits++;
    t->mask = (UINT64_C(1) << bits) - 1;
    t->shift = 64 - bits;
    if (t->mask >= SIZE_MAX / sizeof *t->slots)
        return DK_NO_MEMORY;
    t->slots = calloc((size_t)t->mask + 1, sizeof *t->slots);
    return t->slots ? DK_OK : DK_NO_MEMORY;
}

/* The slot at which a search begins. Multiplies the hash, because the caller may have selected its
 * keys by some bits of the hash. */
static inline uint64_t home(const table *t, uint64_t hash)
{
    return (hash * UINT64_C(0x9e3779b97f4a7c15)) >> t->shift;
}

static inline void look_ahead(const table *t, const uint8_t *hashes, size_t i, size_t n)
{
    if (i + AHEAD < n)
        dk_prefetch(t->slots + home(t, dk_u64(hashes, i + AHEAD)));
}

static inline uint64_t slot_of(uint64_t hash, size_t position)
{
    return hash << 32 | (uint64_t)(position + 1);
}

/* The slot that holds a key equal to key i of `keys`, or else the empty slot for that key. */
static inline uint64_t *find(const table *t, const dk_keys *held, const uint8_t *held_hashes,
                             const dk_keys *keys, size_t i, uint64_t hash)
{
    for (uint64_t at = home(t, hash);; at = (at + 1) & t->mask) {
        uint64_t slot = t->slots[at];
        if (slot == 0)
            return t->slots + at;
        if (slot >> 32 != (hash & UINT32_MAX))
            continue;
        size_t other = (size_t)(slot & UINT32_MAX) - 1;
        if (dk_u64(held_hashes, other) == hash && dk_same(held, other, keys, i))
            return t->slots + at;
    }
}

dk_status dk_first_occurrence(const dk_keys *keys, const uint8_t *hashes, uint8_t *out)
{
    table t;
    if (table_make(&t, keys->n) != DK_OK)
        return DK_NO_MEMORY;
    for (size_t i = 0; i < keys->n; i++) {
        look_ahead(&t, hashes, i, keys->n);
        uint64_t hash = dk_u64(hashes, i);
        uint64_t *slot = find(&t, keys, hashes, keys, i, hash);
        if (*slot == 0)
            *slot = slot_of(hash, i);
        dk_put64(out, i, (*slot & UINT32_MAX) - 1);
    }
    free(t.slots);
    return DK_OK;
}

dk_status dk_join_find(const dk_keys *build, const uint8_t *b_hashes, const dk_keys *probe,
                       const uint8_t *p_hashes, dk_join *join)
{
    table t = {0};
    uint32_t *copies = calloc(build->n + 1, sizeof *copies);
    join->next = calloc(build->n + 1, sizeof *join->next);
    join->found = calloc(probe->n + 1, sizeof *join->found);
    join->pairs = 0;
    if (!copies || !join->next || !join->found || table_make(&t, build->n) != DK_OK) {
        free(copies);
        dk_join_free(join);
        return DK_NO_MEMORY;
    }
    /* Begin at the end, so that each chain starts at its lowest position. */
    for (size_t i = build->n; i-- > 0;) {
        if (i >= AHEAD)
            dk_prefetch(t.slots + home(&t, dk_u64(b_hashes, i - AHEAD)));
        uint64_t hash = dk_u64(b_hashes, i);
        uint64_t *slot = find(&t, build, b_hashes, build, i, hash);
        uint32_t head = (uint32_t)(*slot & UINT32_MAX);
        join->next[i] = head;
        copies[i] = head ? copies[head - 1] + 1 : 1;
        *slot = slot_of(hash, i);
    }
    for (size_t i = 0; i < probe->n; i++) {
        look_ahead(&t, p_hashes, i, probe->n);
        uint64_t slot = *find(&t, build, b_hashes, probe, i, dk_u64(p_hashes, i));
        uint32_t head = (uint32_t)(slot & UINT32_MAX);
        join->found[i] = head;
        uint64_t more = head ? copies[head - 1] : 0;
        join->pairs = join->pairs > UINT64_MAX - more ? UINT64_MAX : join->pairs + more;
    }
    free(copies);
    free(t.slots);
    return DK_OK;
}

void dk_join_emit(const dk_join *join, size_t probes, uint8_t *probe_out, uint8_t *build_out)
{
    size_t pair = 0;
    for (size_t i = 0; i < probes; i++) {
        for (uint32_t b = join->found[i]; b != 0; b = join->next[b - 1], pair++) {
            dk_put64(probe_out, pair, i);
            dk_put64(build_out, pair, b - 1);
        }
    }
}

void dk_join_free(dk_join *join)
{
    free(join->next);
    free(join->found);
}
