/* Multilinear checksum of pages (Lemire and Kaser, "Strongly universal string hashing is fast",
 * 2014): M[0] + sum of M[i + 1] * f(w[i]) modulo 2**64 over the little-endian words of a page.
 *
 * All M but the first are odd, so the checksum detects any change within one word.
 * f(w) = w ^ w >> 32 is invertible, and moves every bit to where a multiplier mixes it. Without f,
 * the same high bit flipped in two words would cancel out.
 */
#include "kernel.h"

#define MAX_WORDS (DK_MAX_PAGE_BYTES / 8)

static uint64_t M[MAX_WORDS + 1];

/* SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014),
 * from the first digits of pi. */
void dk_page_sums_ready(void)
{
    uint64_t state = UINT64_C(0x243f6a8885a308d3);
    for (size_t i = 0; i <= MAX_WORDS; i++) {
        state += UINT64_C(0x9e3779b97f4a7c15);
        uint64_t z = state;
        z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        M[i] = (z ^ z >> 31) | (i > 0);
    }
}

static inline uint64_t folded(const uint8_t *p)
{
    uint64_t w = dk_le64(p);
    return w ^ w >> 32;
}

static uint64_t page_sum(const uint8_t *p, size_t bytes)
{
    size_t words = bytes / 8, i = 0;
    uint64_t a = M[0], b = 0, c = 0, d = 0;
    for (; i + 4 <= words; i += 4, p += 32) {
        a += M[i + 1] * folded(p);
        b += M[i + 2] * folded(p + 8);
        c += M[i + 3] * folded(p + 16);
        d += M[i + 4] * folded(p + 24);
    }
    for (; i < words; i++, p += 8)
        a += M[i + 1] * folded(p);
    if (bytes % 8) {
        uint8_t last[8] = {0};
        memcpy(last, p, bytes % 8);
        a += M[words + 1] * folded(last);
    }
    return a + b + c + d;
}

void dk_page_sums(const uint8_t *data, size_t bytes, size_t page_bytes, uint8_t *out)
{
    for (size_t i = 0; bytes; i++) {
        size_t size = bytes < page_bytes ? bytes : page_bytes;
        dk_put64(out, i, page_sum(data, size));
        data += size;
        bytes -= size;
    }
}
