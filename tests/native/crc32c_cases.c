/* Checksums and copies of crc32c.h against a checksum bit by bit: the instructions of this processor, and the tables.
   Prints the instructions and the number of cases; ends with 1 at the first case that is wrong. */

#include <stddef.h>
#include <stdio.h>

#include "crc32c.h"

#define MOST 100000
#define OFFSETS 9 /* of a word, and one more */

static uint8_t from[MOST + OFFSETS];
static uint8_t to[MOST + OFFSETS + 1] __attribute__((aligned(32)));

static uint32_t bit_by_bit(const uint8_t *p, size_t n)
{
    uint32_t crc = ~0u;
    while (n--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static int right(size_t offset, size_t n, const uint8_t *next)
{
    const uint8_t *p = from + offset;
    uint32_t crc = bit_by_bit(p, n);
    for (int past_cache = 0; past_cache < 2; past_cache++)
        for (size_t at = 0; at <= offset; at += offset ? offset : 1) {
            memset(to, 0, sizeof to);
            uint32_t copied = copied_crc(0, to + at, p, n, next, past_cache);
            copies_done();
            if (copied != crc || memcmp(to + at, p, n) != 0 || to[at + n] != 0)
                return 0;
        }
    return extended(0, p, n) == crc && extended(bit_by_bit(p, n / 2), p + n / 2, n - n / 2) == crc;
}

int main(void)
{
    static const size_t sizes[] = {0, 1, 7, 8, 9, 255, 256, 511, 512, 513, 767, 768, 769, 1023, 1535, 1536, 4096, 5000, 32768, 32771, MOST};
    uint32_t random = 1;
    int cases = 0;
    make_tables();
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)((random = random * 1664525u + 1013904223u) >> 24);
    for (const CrcMeans *means = crc_means; means < crc_means + 3 && means->name != NULL; means++) {
        crc_run = *means;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t offset = 0; offset < OFFSETS; offset++, cases++)
                if (!right(offset, sizes[i], offset % 2 ? from : NULL)) {
                    printf("%s: %zu bytes from byte %zu are wrong\n", crc_run.name, sizes[i], offset);
                    return 1;
                }
        printf("%s ", crc_run.name);
    }
    if (bit_by_bit((const uint8_t *)"123456789", 9) != 0xe3069283u) /* the check value of CRC-32C */
        return 1;
    printf("%d\n", cases);
    return 0;
}
