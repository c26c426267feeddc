/* Split-block Bloom filter in the layout of Apache Parquet (BloomFilter.md of parquet-format). */
#include "kernel.h"

#define BLOCK_BYTES 32

static const uint32_t SALT[8] = {0x47b6137bU, 0x44974d91U, 0x8824ad5bU, 0xa2b7289dU,
                                 0x705495c7U, 0x2df1424bU, 0x9efc4947U, 0x5c6bfb31U};

/* The product fits 64 bits, because blocks < 2**32. */
static inline size_t block_of(uint64_t hash, size_t blocks)
{
    return (size_t)(((hash >> 32) * (uint64_t)blocks) >> 32);
}

static inline size_t block_at(uint64_t hash, size_t blocks)
{
    return block_of(hash, blocks) * BLOCK_BYTES;
}

static inline uint32_t lane_bit(uint64_t hash, int lane)
{
    return UINT32_C(1) << (((uint32_t)hash * SALT[lane]) >> 27);
}

static inline void add_one(uint8_t *block, uint64_t hash)
{
    uint32_t words[8];
    memcpy(words, block, sizeof words);
    for (int lane = 0; lane < 8; lane++)
        words[lane] |= lane_bit(hash, lane);
    memcpy(block, words, sizeof words);
}

static inline uint64_t probe_one(const uint8_t *block, uint64_t hash)
{
    uint32_t words[8], missing = 0;
    memcpy(words, block, sizeof words);
    for (int lane = 0; lane < 8; lane++)
        missing |= ~words[lane] & lane_bit(hash, lane);
    return missing == 0;
}

/* Both paths have the same loops, and differ only in the work per key. The loops are macros, because
 * the compiler does not inline a function with the target attribute into one without it. */

#define ADD_LOOP(one)                                                                              \
    size_t i = 0;                                                                                  \
    if (blocks * BLOCK_BYTES > DK_CACHED_BYTES && n > DK_AHEAD) {                                  \
        for (; i < n - DK_AHEAD; i++) {                                                            \
            dk_prefetch(bits + block_at(dk_u64(hashes, i + DK_AHEAD), blocks));                    \
            uint64_t hash = dk_u64(hashes, i);                                                     \
            one(bits + block_at(hash, blocks), hash);                                              \
        }                                                                                          \
    }                                                                                              \
    for (; i < n; i++) {                                                                           \
        uint64_t hash = dk_u64(hashes, i);                                                         \
        one(bits + block_at(hash, blocks), hash);                                                  \
    }

#define PROBE_LOOP(one)                                                                            \
    size_t i = 0;                                                                                  \
    if (blocks * BLOCK_BYTES > DK_CACHED_BYTES && n > DK_AHEAD) {                                  \
        for (; i < n - DK_AHEAD; i++) {                                                            \
            dk_prefetch(bits + block_at(dk_u64(hashes, i + DK_AHEAD), blocks));                    \
            uint64_t hash = dk_u64(hashes, i);                                                     \
            uint64_t hit = one(bits + block_at(hash, blocks), hash);                               \
            dk_put64(out, i, dk_u64(out, i) | hit << index);                                       \
        }                                                                                          \
    }                                                                                              \
    for (; i < n; i++) {                                                                           \
        uint64_t hash = dk_u64(hashes, i);                                                         \
        uint64_t hit = one(bits + block_at(hash, blocks), hash);                                   \
        dk_put64(out, i, dk_u64(out, i) | hit << index);                                           \
    }

/* Does not prefetch, because pages are adjacent. For a hash outside its page, the unsigned block
 * number in the page is too large. Every page but the filter's last has page_blocks blocks. */
#define PROBE_PAGES_LOOP(one)                                                                      \
    size_t i = 0;                                                                                  \
    const uint8_t *page = part->bits;                                                              \
    for (size_t j = 0; j < part->k; j++, page += part->page_blocks * BLOCK_BYTES) {                \
        size_t first = (size_t)dk_i64(part->pages, j) * part->page_blocks;                         \
        size_t end = (size_t)(dk_i64(part->starts, j + 1) - dk_i64(part->starts, 0));              \
        for (; i < end; i++) {                                                                     \
            uint64_t hash = dk_u64(hashes, i);                                                     \
            size_t block = block_of(hash, part->blocks) - first;                                   \
            if (block >= part->page_blocks) {                                                      \
                *bad = i;                                                                          \
                return DK_BAD_HASH;                                                                \
            }                                                                                      \
            out[i] = (uint8_t)one(page + block * BLOCK_BYTES, hash);                               \
        }                                                                                          \
    }                                                                                              \
    return DK_OK;

void dk_add_scalar(uint8_t *bits, size_t blocks, const uint8_t *hashes, size_t n)
{
    ADD_LOOP(add_one)
}

void dk_probe_scalar(const uint8_t *bits, size_t blocks, const uint8_t *hashes, size_t n,
                     unsigned index, uint8_t *out)
{
    PROBE_LOOP(probe_one)
}

dk_status dk_probe_pages_scalar(const dk_paged *part, const uint8_t *hashes, uint8_t *out,
                                size_t *bad)
{
    PROBE_PAGES_LOOP(probe_one)
}

dk_status dk_filter_pages(const uint8_t *hashes, size_t n, size_t blocks, size_t page_blocks,
                          uint8_t *pages, uint8_t *starts, size_t *k)
{
    uint64_t before = 0, end = 0; /* end: the first block after the page */
    *k = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t hash = dk_u64(hashes, i);
        if (hash < before)
            return DK_UNSORTED;
        before = hash;
        uint64_t block = block_of(hash, blocks);
        if (block >= end) {
            uint64_t page = block / page_blocks;
            dk_put64(pages, *k, page);
            dk_put64(starts, *k, i);
            end = (page + 1) * page_blocks;
            ++*k;
        }
    }
    dk_put64(starts, *k, n);
    return DK_OK;
}

#ifdef DK_AVX2
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i lane_bits(uint64_t hash)
{
    const __m256i salt = _mm256_loadu_si256((const __m256i *)(const void *)SALT);
    __m256i product = _mm256_mullo_epi32(_mm256_set1_epi32((int)(uint32_t)hash), salt);
    return _mm256_sllv_epi32(_mm256_set1_epi32(1), _mm256_srli_epi32(product, 27));
}

AVX2 static inline void add_one_avx2(uint8_t *block, uint64_t hash)
{
    __m256i *p = (__m256i *)(void *)block;
    _mm256_storeu_si256(p, _mm256_or_si256(_mm256_loadu_si256(p), lane_bits(hash)));
}

AVX2 static inline uint64_t probe_one_avx2(const uint8_t *block, uint64_t hash)
{
    __m256i words = _mm256_loadu_si256((const __m256i *)(const void *)block);
    return (uint64_t)_mm256_testc_si256(words, lane_bits(hash));
}

AVX2 void dk_add_avx2(uint8_t *bits, size_t blocks, const uint8_t *hashes, size_t n)
{
    ADD_LOOP(add_one_avx2)
}

AVX2 void dk_probe_avx2(const uint8_t *bits, size_t blocks, const uint8_t *hashes, size_t n,
                        unsigned index, uint8_t *out)
{
    PROBE_LOOP(probe_one_avx2)
}

AVX2 dk_status dk_probe_pages_avx2(const dk_paged *part, const uint8_t *hashes, uint8_t *out,
                                   size_t *bad)
{
    PROBE_PAGES_LOOP(probe_one_avx2)
}
#endif
