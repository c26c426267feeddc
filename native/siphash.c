/* SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012). */
#include "kernel.h"

#define ROTATE(x, b) ((x) << (b) | (x) >> (64 - (b)))

#define SIP_ROUND(v0, v1, v2, v3)                                                                  \
    do {                                                                                           \
        v0 += v1;                                                                                  \
        v1 = ROTATE(v1, 13) ^ v0;                                                                  \
        v0 = ROTATE(v0, 32);                                                                       \
        v2 += v3;                                                                                  \
        v3 = ROTATE(v3, 16) ^ v2;                                                                  \
        v0 += v3;                                                                                  \
        v3 = ROTATE(v3, 21) ^ v0;                                                                  \
        v2 += v1;                                                                                  \
        v1 = ROTATE(v1, 17) ^ v2;                                                                  \
        v2 = ROTATE(v2, 32);                                                                       \
    } while (0)

typedef struct {
    uint64_t v0, v1, v2, v3;
} sip_state;

static sip_state sip_start(const uint8_t key[16])
{
    uint64_t k0 = dk_le64(key), k1 = dk_le64(key + 8);
    return (sip_state){k0 ^ UINT64_C(0x736f6d6570736575), k1 ^ UINT64_C(0x646f72616e646f6d),
                       k0 ^ UINT64_C(0x6c7967656e657261), k1 ^ UINT64_C(0x7465646279746573)};
}

/* The last word of a key: the bytes after the full words, and the length in the highest byte. Reads
 * no byte outside the key. */
static inline uint64_t last_word(const uint8_t *p, size_t length)
{
    size_t rest = length & 7;
    uint64_t word = (uint64_t)length << 56;
    if (length >= 8)
        return rest ? word | dk_le64(p + length - 8) >> (64 - 8 * rest) : word;
    for (size_t i = 0; i < rest; i++)
        word |= (uint64_t)p[i] << (8 * i);
    return word;
}

static inline uint64_t sip_one(sip_state s, const uint8_t *p, size_t length)
{
    uint64_t v0 = s.v0, v1 = s.v1, v2 = s.v2, v3 = s.v3;
    for (size_t i = 0; i + 8 <= length; i += 8) {
        uint64_t m = dk_le64(p + i);
        v3 ^= m;
        SIP_ROUND(v0, v1, v2, v3);
        v0 ^= m;
    }
    uint64_t m = last_word(p, length);
    v3 ^= m;
    SIP_ROUND(v0, v1, v2, v3);
    v0 ^= m;
    v2 ^= 0xff;
    SIP_ROUND(v0, v1, v2, v3);
    SIP_ROUND(v0, v1, v2, v3);
    SIP_ROUND(v0, v1, v2, v3);
    return v0 ^ v1 ^ v2 ^ v3;
}

static void hash_range(sip_state s, const dk_keys *keys, size_t from, size_t to, uint8_t *out)
{
    for (size_t i = from; i < to; i++) {
        size_t length;
        const uint8_t *p = dk_key(keys, i, &length);
        dk_put64(out, i, sip_one(s, p, length));
    }
}

void dk_hash_scalar(const dk_keys *keys, const uint8_t key[16], uint8_t *out)
{
    hash_range(sip_start(key), keys, 0, keys->n, out);
}

#ifdef DK_AVX2
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i rotate4(__m256i x, int b)
{
    return _mm256_or_si256(_mm256_slli_epi64(x, b), _mm256_srli_epi64(x, 64 - b));
}

AVX2 static inline void round4(__m256i v[4])
{
    const __m256i by16 = _mm256_setr_epi8(6, 7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13, 6,
                                          7, 0, 1, 2, 3, 4, 5, 14, 15, 8, 9, 10, 11, 12, 13);
    v[0] = _mm256_add_epi64(v[0], v[1]);
    v[1] = _mm256_xor_si256(rotate4(v[1], 13), v[0]);
    v[0] = _mm256_shuffle_epi32(v[0], 0xb1);
    v[2] = _mm256_add_epi64(v[2], v[3]);
    v[3] = _mm256_xor_si256(_mm256_shuffle_epi8(v[3], by16), v[2]);
    v[0] = _mm256_add_epi64(v[0], v[3]);
    v[3] = _mm256_xor_si256(rotate4(v[3], 21), v[0]);
    v[2] = _mm256_add_epi64(v[2], v[1]);
    v[1] = _mm256_xor_si256(rotate4(v[1], 17), v[2]);
    v[2] = _mm256_shuffle_epi32(v[2], 0xb1);
}

AVX2 static inline void absorb4(__m256i v[4], __m256i m)
{
    v[3] = _mm256_xor_si256(v[3], m);
    round4(v);
    v[0] = _mm256_xor_si256(v[0], m);
}

AVX2 static inline __m256i words4(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return _mm256_set_epi64x((long long)d, (long long)c, (long long)b, (long long)a);
}

/* Hashes four keys at once if they have the same number of words, and else one by one. */
AVX2 void dk_hash_avx2(const dk_keys *keys, const uint8_t key[16], uint8_t *out)
{
    sip_state s = sip_start(key);
    size_t i = 0;
    for (; i + 4 <= keys->n; i += 4) {
        size_t la, lb, lc, ld;
        const uint8_t *a = dk_key(keys, i, &la), *b = dk_key(keys, i + 1, &lb);
        const uint8_t *c = dk_key(keys, i + 2, &lc), *d = dk_key(keys, i + 3, &ld);
        size_t words = la / 8;
        if (lb / 8 != words || lc / 8 != words || ld / 8 != words) {
            hash_range(s, keys, i, i + 4, out);
            continue;
        }
        __m256i v[4] = {_mm256_set1_epi64x((long long)s.v0), _mm256_set1_epi64x((long long)s.v1),
                        _mm256_set1_epi64x((long long)s.v2), _mm256_set1_epi64x((long long)s.v3)};
        for (size_t w = 0; w < 8 * words; w += 8)
            absorb4(v, words4(dk_le64(a + w), dk_le64(b + w), dk_le64(c + w), dk_le64(d + w)));
        absorb4(v, words4(last_word(a, la), last_word(b, lb), last_word(c, lc), last_word(d, ld)));
        v[2] = _mm256_xor_si256(v[2], _mm256_set1_epi64x(0xff));
        round4(v);
        round4(v);
        round4(v);
        __m256i h = _mm256_xor_si256(_mm256_xor_si256(v[0], v[1]), _mm256_xor_si256(v[2], v[3]));
        _mm256_storeu_si256((__m256i *)(void *)(out + 8 * i), h);
    }
    hash_range(s, keys, i, keys->n, out);
}
#endif
