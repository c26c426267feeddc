/* Copies keys in another order. They may be anywhere in the data, so the data is prefetched. */
#include "kernel.h"

#define AHEAD 16

static size_t at(const uint8_t *index, size_t i)
{
    return (size_t)dk_u64(index, i);
}

/* True, and sets *length, if all keys have the same length. Returns false without a check if the
 * index selects only a few of many keys. */
static bool one_length(const dk_keys *keys, size_t m, size_t *length)
{
    if (keys->n == 0 || m < keys->n / 16)
        return false;
    int64_t before = dk_i64(keys->offsets, 0), first = dk_i64(keys->offsets, 1) - before;
    for (size_t i = 0; i < keys->n; i++) {
        int64_t end = dk_i64(keys->offsets, i + 1);
        if (end - before != first)
            return false;
        before = end;
    }
    *length = (size_t)first;
    return true;
}

bool dk_index_ok(const uint8_t *index, size_t m, size_t n, size_t *bad)
{
    for (size_t i = 0; i < m; i++) {
        if (dk_u64(index, i) >= n) { /* a negative number is a large one here */
            *bad = i;
            return false;
        }
    }
    return true;
}

dk_status dk_take_size(const dk_keys *keys, const uint8_t *index, size_t m, uint8_t *out_offsets)
{
    size_t length = 0;
    uint64_t used = 0;
    bool same = one_length(keys, m, &length);
    if (same && length && m > INT64_MAX / length)
        return DK_NO_MEMORY;
    for (size_t i = 0; i < m; i++) {
        dk_put64(out_offsets, i, used);
        if (!same) {
            if (i + AHEAD < m)
                dk_prefetch(keys->offsets + 8 * at(index, i + AHEAD));
            dk_key(keys, at(index, i), &length);
        }
        used += length;
        if (used > INT64_MAX)
            return DK_NO_MEMORY;
    }
    dk_put64(out_offsets, m, used);
    return DK_OK;
}

/* This is a macro, so that the compiler sees the usual lengths as constants. */
#define TAKE_LOOP(length)                                                                          \
    for (size_t i = 0; i < m; i++, out += (length)) {                                              \
        if (i + AHEAD < m) {                                                                       \
            const uint8_t *later = data + at(index, i + AHEAD) * (length);                         \
            dk_prefetch(later);                                                                    \
            dk_prefetch(later + (length) - 1);                                                     \
        }                                                                                          \
        memcpy(out, data + at(index, i) * (length), (length));                                     \
    }

void dk_take(const dk_keys *keys, const uint8_t *index, size_t m, uint8_t *out)
{
    size_t length;
    if (one_length(keys, m, &length)) {
        const uint8_t *data = keys->data + dk_i64(keys->offsets, 0);
        if (length == 17) { /* a UUID after its tag */
            TAKE_LOOP(17)
        } else if (length) {
            TAKE_LOOP(length)
        }
        return;
    }
    for (size_t i = 0; i < m; i++) {
        if (i + 2 * AHEAD < m)
            dk_prefetch(keys->offsets + 8 * at(index, i + 2 * AHEAD));
        size_t size;
        if (i + AHEAD < m)
            dk_prefetch(dk_key(keys, at(index, i + AHEAD), &size));
        const uint8_t *p = dk_key(keys, at(index, i), &size);
        memcpy(out, p, size);
        out += size;
    }
}
