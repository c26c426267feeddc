/* Converts UUID text to 16 bytes and back, eight hexadecimal digits at a time. */
#include "kernel.h"

#define UUID_TEXT 36
#define EACH(x) (UINT64_C(0x0101010101010101) * (x))

/* Decodes 8 digits to 4 bytes. The first digit is in the lowest byte. Sets a bit of *bad for every
 * character that is not a digit. */
static inline uint32_t digits8(uint64_t x, uint64_t *bad)
{
    /* The top bits are 0, so no sum carries into the next byte. The top bit of each sum is then the
     * result of a comparison. */
    uint64_t plain = x & EACH(0x7f);
    uint64_t from_0 = plain + EACH(0x80 - '0'), past_9 = plain + EACH(0x80 - '9' - 1);
    uint64_t from_a = plain + EACH(0x80 - 'a'), past_f = plain + EACH(0x80 - 'f' - 1);
    uint64_t good = ((from_0 & ~past_9) | (from_a & ~past_f)) & ~x & EACH(0x80);
    *bad |= good ^ EACH(0x80);
    uint64_t nibbles = (plain & EACH(0x0f)) + 9 * ((from_a & EACH(0x80)) >> 7);
    uint64_t v = (nibbles << 4 | nibbles >> 8) & UINT64_C(0x00ff00ff00ff00ff);
    v = (v | v >> 8) & UINT64_C(0x0000ffff0000ffff);
    return (uint32_t)(v | v >> 16);
}

static inline uint64_t four_and_four(const uint8_t *a, const uint8_t *b)
{
    return (uint64_t)dk_le32(a) | (uint64_t)dk_le32(b) << 32;
}

/* Writes 16 bytes to out. False, with undefined bytes in out, unless p is canonical UUID text. */
static inline bool uuid_bytes(const uint8_t *p, uint8_t *out)
{
    uint64_t bad = (uint64_t)((p[8] ^ '-') | (p[13] ^ '-') | (p[18] ^ '-') | (p[23] ^ '-'));
    dk_put_le32(out, digits8(dk_le64(p), &bad));
    dk_put_le32(out + 4, digits8(four_and_four(p + 9, p + 14), &bad));
    dk_put_le32(out + 8, digits8(four_and_four(p + 19, p + 24), &bad));
    dk_put_le32(out + 12, digits8(dk_le64(p + 28), &bad));
    return bad == 0;
}

size_t dk_encode_uuid(const dk_keys *keys, uint8_t *out, uint8_t *out_offsets)
{
    size_t used = 0;
    for (size_t i = 0; i < keys->n; i++) {
        size_t length;
        const uint8_t *p = dk_key(keys, i, &length);
        dk_put64(out_offsets, i, used);
        if (length == UUID_TEXT && uuid_bytes(p, out + used + 1)) {
            out[used] = 1;
            used += 17;
        } else {
            out[used] = 0;
            if (length)
                memcpy(out + used + 1, p, length);
            used += 1 + length;
        }
    }
    dk_put64(out_offsets, keys->n, used);
    return used;
}

/* Encodes 4 bytes as 8 digits, the first in the lowest byte. The inverse of digits8. */
static inline uint64_t text8(uint32_t bytes)
{
    uint64_t v = bytes;
    v = (v | v << 16) & UINT64_C(0x0000ffff0000ffff);
    v = (v | v << 8) & UINT64_C(0x00ff00ff00ff00ff);
    uint64_t nibbles = (v >> 4 | v << 8) & EACH(0x0f);
    /* Adding 6 sets the fifth bit of every nibble from 10 on. */
    uint64_t letters = ((nibbles + EACH(6)) >> 4) & EACH(1);
    return nibbles + EACH('0') + letters * ('a' - '0' - 10);
}

static inline void put_le64(uint8_t *p, uint64_t v)
{
    dk_put_le32(p, (uint32_t)v);
    dk_put_le32(p + 4, (uint32_t)(v >> 32));
}

static inline void uuid_text(const uint8_t *p, uint8_t *out)
{
    uint64_t b = text8(dk_le32(p + 4)), c = text8(dk_le32(p + 8));
    put_le64(out, text8(dk_le32(p)));
    out[8] = out[13] = out[18] = out[23] = '-';
    dk_put_le32(out + 9, (uint32_t)b);
    dk_put_le32(out + 14, (uint32_t)(b >> 32));
    dk_put_le32(out + 19, (uint32_t)c);
    dk_put_le32(out + 24, (uint32_t)(c >> 32));
    put_le64(out + 28, text8(dk_le32(p + 12)));
}

bool dk_decode_uuid(const dk_keys *keys, uint8_t *out, uint8_t *out_offsets, size_t *bad)
{
    size_t used = 0;
    for (size_t i = 0; i < keys->n; i++) {
        size_t length;
        const uint8_t *p = dk_key(keys, i, &length);
        dk_put64(out_offsets, i, used);
        if (length == 0)
            continue;
        if (p[0] == 1 && length == 17) {
            uuid_text(p + 1, out + used);
            used += UUID_TEXT;
        } else if (p[0] == 0) {
            memcpy(out + used, p + 1, length - 1);
            used += length - 1;
        } else {
            *bad = i;
            return false;
        }
    }
    dk_put64(out_offsets, keys->n, used);
    return true;
}
