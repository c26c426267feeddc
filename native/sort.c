/* Sorts keys by (hash, bytes, position).
 *
 * The first pass spreads the keys by the top bits of the hash over parts that fit into the cache.
 * From then on, an entry has 8 bytes: the next 32 bits of the hash, and the position of the key. So
 * entries compare as numbers, and no two are equal. Within a part, a second pass spreads the
 * entries so thinly that insertion sort has little to do. The time of each pass is proportional to
 * its entries, whatever the hashes are. Only keys with equal hashes compare their bytes, in a merge
 * sort.
 */
#include "kernel.h"

#include <stdlib.h>

/* A part has about 2**PART_BITS entries, so that two parts and their counts fit into the first-level
 * cache. Spreading over more than 2**11 parts at a time gains nothing. */
#define PART_BITS 9
#define MAX_SPREAD 11
/* Up to this many entries are sorted by insertion sort alone. */
#define FEW 24

typedef struct {
    const dk_keys *keys;
    const uint8_t *hashes;
    unsigned shift; /* bits of the hash above the entries' */
    uint64_t *spare;
} sort_job;

static inline uint64_t high_half(uint64_t x)
{
    return x & ~(uint64_t)UINT32_MAX;
}

/* The number of bits by which to spread n entries, 1 to MAX_SPREAD. Gives about two parts per
 * entry. */
static unsigned bits_for(size_t n)
{
    unsigned bits = 1;
    while (bits < MAX_SPREAD && n >> bits)
        bits++;
    return bits;
}

static bool key_less(const dk_keys *keys, uint64_t a, uint64_t b)
{
    size_t la, lb;
    const uint8_t *pa = dk_key(keys, a & UINT32_MAX, &la), *pb = dk_key(keys, b & UINT32_MAX, &lb);
    int order = memcmp(pa, pb, la < lb ? la : lb);
    return order ? order < 0 : la < lb;
}

/* Sorts by bytes, bottom-up and stable. Positions rise at the start, so those of equal keys still
 * rise at the end. */
static void merge_sort(const dk_keys *keys, uint64_t *a, uint64_t *spare, size_t n)
{
    uint64_t *from = a, *to = spare;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t middle = low + width < n ? low + width : n;
            size_t high = middle + width < n ? middle + width : n;
            size_t i = low, j = middle;
            for (size_t k = low; k < high; k++) {
                bool right = i == middle || (j < high && key_less(keys, from[j], from[i]));
                to[k] = right ? from[j++] : from[i++];
            }
        }
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != a)
        memcpy(a, from, n * sizeof *a);
}

/* Sorts a. The top `used` bits of all entries are equal, and positions rise at the start. */
static void sort_entries(uint64_t *a, uint64_t *spare, size_t n, unsigned used)
{
    uint64_t *from = a;
    if (n > FEW) {
        if (used >= 32)
            return;
        uint32_t ends[1 << MAX_SPREAD];
        unsigned bits = bits_for(n);
        size_t parts = (size_t)1 << bits;
        memset(ends, 0, parts * sizeof *ends);
        for (size_t i = 0; i < n; i++)
            ends[a[i] << used >> (64 - bits)]++;
        uint32_t most = 0;
        for (size_t p = 0, start = 0; p < parts; p++) {
            uint32_t count = ends[p];
            most = count > most ? count : most;
            ends[p] = (uint32_t)start;
            start += count;
        }
        for (size_t i = 0; i < n; i++)
            spare[ends[a[i] << used >> (64 - bits)]++] = a[i];
        if (most > FEW) {
            for (size_t p = 0, start = 0; p < parts; start = ends[p++])
                if (ends[p] - start > FEW)
                    sort_entries(spare + start, a + start, ends[p] - start, used + bits);
        }
        from = spare;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t entry = from[i];
        size_t j = i;
        for (; j > 0 && a[j - 1] > entry; j--)
            a[j] = a[j - 1];
        a[j] = entry;
    }
}

static bool any_ties(const uint64_t *a, size_t n)
{
    bool ties = false;
    for (size_t i = 1; i < n; i++)
        ties |= (a[i] ^ a[i - 1]) <= UINT32_MAX;
    return ties;
}

typedef void run_function(const sort_job *job, uint64_t *run, size_t n);

/* Calls settle for every run of entries whose high halves are equal. */
static void each_run(const sort_job *job, uint64_t *a, size_t n, run_function *settle)
{
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && (a[end] ^ a[i]) <= UINT32_MAX; end++)
            ;
        if (end - i > 1)
            settle(job, a + i, end - i);
    }
}

static void settle_bytes(const sort_job *job, uint64_t *run, size_t n)
{
    merge_sort(job->keys, run, job->spare, n);
}

/* Sorts entries with equal upper bits of the hash by the lower bits, then by bytes. */
static void settle_hash(const sort_job *job, uint64_t *run, size_t n)
{
    if (job->shift < 32) {
        for (size_t i = 0; i < n; i++) {
            uint64_t position = run[i] & UINT32_MAX;
            run[i] = dk_u64(job->hashes, (size_t)position) << (job->shift + 32) | position;
        }
        sort_entries(run, job->spare, n, 0);
    }
    each_run(job, run, n, settle_bytes);
}

/* Sorts the n entries of a part, and replaces each entry by its position. */
static void sort_part(const sort_job *job, uint64_t *a, size_t n)
{
    sort_entries(a, job->spare, n, 0);
    if (any_ties(a, n))
        each_run(job, a, n, settle_hash);
    for (size_t i = 0; i < n; i++)
        a[i] &= UINT32_MAX;
}

dk_status dk_sort_keys(const dk_keys *keys, const uint8_t *hashes, uint8_t *out)
{
    size_t n = keys->n, ends[1 << MAX_SPREAD];
    if (n == 0)
        return DK_OK;
    /* Bits that all hashes share cannot spread them. */
    uint64_t differ = 0;
    for (size_t i = 0; i < n; i++)
        differ |= dk_u64(hashes, i) ^ dk_u64(hashes, 0);
    unsigned bits = n >> PART_BITS ? bits_for(n >> PART_BITS) : 1, skip = 0;
    while (skip < 64 - bits && !(differ >> (63 - skip)))
        skip++;
    size_t parts = (size_t)1 << bits, most = 0;
    memset(ends, 0, parts * sizeof *ends);
    for (size_t i = 0; i < n; i++)
        ends[dk_u64(hashes, i) << skip >> (64 - bits)]++;
    for (size_t p = 0, start = 0; p < parts; p++) {
        size_t count = ends[p];
        most = count > most ? count : most;
        ends[p] = start;
        start += count;
    }
    /* Keep the entries in the output, which has room for them, because new memory is expensive. */
    bool aligned = (uintptr_t)out % sizeof(uint64_t) == 0;
    if (n > SIZE_MAX / (2 * sizeof(uint64_t)))
        return DK_NO_MEMORY;
    uint64_t *spare = malloc((most + (aligned ? 0 : n)) * sizeof *spare);
    if (!spare)
        return DK_NO_MEMORY;
    uint64_t *a = aligned ? (uint64_t *)(void *)out : spare + most;
    for (size_t i = 0; i < n; i++) {
        uint64_t hash = dk_u64(hashes, i) << skip;
        a[ends[hash >> (64 - bits)]++] = high_half(hash << bits) | i;
    }
    sort_job job = {keys, hashes, skip + bits, spare};
    for (size_t p = 0, start = 0; p < parts; start = ends[p++])
        sort_part(&job, a + start, ends[p] - start);
    if (!aligned)
        memcpy(out, a, n * sizeof *a);
    free(spare);
    return DK_OK;
}
