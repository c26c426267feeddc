/* Checks the offsets of a column, and judges the records of a micro-batch. */
#include "kernel.h"

enum { TAKEN = 0, DUPLICATE = 1, LATE = 2 };

bool dk_keys_ok(const dk_keys *keys)
{
    int64_t before = dk_i64(keys->offsets, 0);
    bool falls = before < 0;
    for (size_t i = 1; i <= keys->n; i++) {
        int64_t offset = dk_i64(keys->offsets, i);
        falls |= offset < before;
        before = offset;
    }
    return !falls && (uint64_t)before <= keys->data_bytes;
}

dk_status dk_scan_verdicts(const uint8_t *group, const uint8_t *time_ms, const uint8_t *known,
                           const uint8_t *droppable, size_t n, int64_t horizon_ms, uint8_t *out)
{
    int64_t last_group = 0, last_time = 0, taken_time = 0;
    bool taken = false;
    for (size_t i = 0; i < n; i++) {
        int64_t g = dk_i64(group, i), time = dk_i64(time_ms, i);
        if (i == 0 || g != last_group)
            taken = false;
        else if (time < last_time)
            return DK_UNSORTED;
        if (i > 0 && g < last_group)
            return DK_UNSORTED;
        last_group = g;
        last_time = time;
        /* Times rise, so the unsigned difference is exact. A signed difference might overflow. */
        if (known[i] ||
            (taken && (uint64_t)time - (uint64_t)taken_time <= (uint64_t)horizon_ms)) {
            out[i] = DUPLICATE;
        } else if (droppable[i]) {
            out[i] = LATE;
        } else {
            out[i] = TAKEN;
            taken = true;
            taken_time = time;
        }
    }
    return DK_OK;
}
