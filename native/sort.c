/* Order of keys by (hash, bytes, position).
 *
 * Radix sort from the top byte of the hash down, stable, until few are left or the hash is used
 * up; then insertion sort, and merge sort of the keys that share a hash. Two buffers take turns,
 * so no level copies back; a finished stretch goes straight to the output.
 */
#include "kernel.h"

#include <stdlib.h>

#define FEW 32

typedef struct {
    uint64_t hash;
    uint64_t position;
} entry;

typedef struct {
    const dk_keys *keys;
    uint8_t *out;
} sort_job;

static bool key_less(const dk_keys *keys, uint64_t a, uint64_t b)
{
    size_t la, lb;
    const uint8_t *pa = dk_key(keys, (size_t)a, &la), *pb = dk_key(keys, (size_t)b, &lb);
    int order = memcmp(pa, pb, la < lb ? la : lb);
    return order ? order < 0 : la < lb;
}

/* Bottom-up and stable: positions rise at the start, so equal keys keep rising ones. */
static void merge_sort(const dk_keys *keys, entry *a, entry *spare, size_t n)
{
    entry *from = a, *to = spare;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t middle = low + width < n ? low + width : n;
            size_t high = middle + width < n ? middle + width : n;
            size_t i = low, j = middle;
            for (size_t k = low; k < high; k++) {
                bool right = i == middle ||
                             (j < high && key_less(keys, from[j].position, from[i].position));
                to[k] = right ? from[j++] : from[i++];
            }
        }
        entry *swap = from;
        from = to;
        to = swap;
    }
    if (from != a)
        memcpy(a, from, n * sizeof *a);
}

static void insertion_sort(entry *a, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        entry e = a[i];
        size_t j = i;
        for (; j > 0 && a[j - 1].hash > e.hash; j--)
            a[j] = a[j - 1];
        a[j] = e;
    }
}

/* a is sorted by hash; `at` is its place in the whole order. */
static void finish(const sort_job *job, entry *a, entry *spare, size_t n, size_t at)
{
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && a[end].hash == a[i].hash; end++)
            ;
        if (end - i > 1)
            merge_sort(job->keys, a + i, spare + i, end - i);
    }
    for (size_t i = 0; i < n; i++)
        dk_put64(job->out, at + i, a[i].position);
}

/* Sorts a by the bits of the hash below `bits`; those above are equal. At most 8 levels deep. */
static void radix_sort(const sort_job *job, entry *a, entry *spare, size_t n, unsigned bits, size_t at)
{
    size_t ends[256];
    for (;; bits -= 8) {
        if (n <= FEW || bits == 0) {
            if (bits)
                insertion_sort(a, n);
            finish(job, a, spare, n, at);
            return;
        }
        memset(ends, 0, sizeof ends);
        for (size_t i = 0; i < n; i++)
            ends[a[i].hash >> (bits - 8) & 255]++;
        if (ends[a[0].hash >> (bits - 8) & 255] < n)
            break;
    }
    for (size_t b = 0, start = 0; b < 256; b++) {
        size_t count = ends[b];
        ends[b] = start;
        start += count;
    }
    for (size_t i = 0; i < n; i++)
        spare[ends[a[i].hash >> (bits - 8) & 255]++] = a[i];
    for (size_t b = 0, start = 0; b < 256; start = ends[b++])
        if (ends[b] > start)
            radix_sort(job, spare + start, a + start, ends[b] - start, bits - 8, at + start);
}

dk_status dk_sort_keys(const dk_keys *keys, const uint8_t *hashes, uint8_t *out)
{
    size_t n = keys->n;
    if (n > SIZE_MAX / (2 * sizeof(entry)))
        return DK_NO_MEMORY;
    if (n == 0)
        return DK_OK;
    entry *a = malloc(2 * n * sizeof *a);
    if (!a)
        return DK_NO_MEMORY;
    for (size_t i = 0; i < n; i++)
        a[i] = (entry){dk_u64(hashes, i), i};
    radix_sort(&(sort_job){keys, out}, a, a + n, n, 64, 0);
    free(a);
    return DK_OK;
}
