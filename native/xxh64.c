/* XXH64 of bytes with seed 0, the checksum in our tables (Collet, "xxHash fast digest algorithm",
 * doc/xxhash_spec.md of Cyan4973/xxHash).
 */
#include "kernel.h"

#define P1 UINT64_C(0x9e3779b185ebca87)
#define P2 UINT64_C(0xc2b2ae3d27d4eb4f)
#define P3 UINT64_C(0x165667b19e3779f9)
#define P4 UINT64_C(0x85ebca77c2b2ae63)
#define P5 UINT64_C(0x27d4eb2f165667c5)

static inline uint64_t rotated(uint64_t v, int bits)
{
    return v << bits | v >> (64 - bits);
}

static inline uint64_t rounded(uint64_t lane, uint64_t word)
{
    return rotated(lane + word * P2, 31) * P1;
}

uint64_t dk_xxh64(const uint8_t *p, size_t bytes)
{
    const uint8_t *end = p + bytes;
    uint64_t h = P5;
    if (bytes >= 32) {
        uint64_t a = P1 + P2, b = P2, c = 0, d = 0 - P1;
        for (; end - p >= 32; p += 32) {
            a = rounded(a, dk_le64(p));
            b = rounded(b, dk_le64(p + 8));
            c = rounded(c, dk_le64(p + 16));
            d = rounded(d, dk_le64(p + 24));
        }
        h = rotated(a, 1) + rotated(b, 7) + rotated(c, 12) + rotated(d, 18);
        h = (h ^ rounded(0, a)) * P1 + P4;
        h = (h ^ rounded(0, b)) * P1 + P4;
        h = (h ^ rounded(0, c)) * P1 + P4;
        h = (h ^ rounded(0, d)) * P1 + P4;
    }
    h += bytes;
    for (; end - p >= 8; p += 8)
        h = rotated(h ^ rounded(0, dk_le64(p)), 27) * P1 + P4;
    if (end - p >= 4) {
        h = rotated(h ^ dk_le32(p) * P1, 23) * P2 + P3;
        p += 4;
    }
    for (; p < end; p++)
        h = rotated(h ^ *p * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}
