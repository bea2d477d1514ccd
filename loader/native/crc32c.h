/* CRC-32C, of bytes alone or of bytes that are copied meanwhile: by SSE4.2, ARMv8 or tables, as the processor can.

   Castagnoli's polynomial, bits reversed; registers are kept inverted, as the instructions do. Call make_tables first. */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define POLYNOMIAL 0x82f63b78u
#define LANE 256
/* Bytes of one of three lanes that are checked side by side: an instruction takes three cycles, and one begins in each.
   Lanes of pages hinder each other: their bytes share places in the processor's cache. */
#define LINE 64 /* bytes of a line of that cache */

static uint32_t by_byte[8][256];        /* what a byte does to a register, 0 to 7 bytes before its end */
static uint32_t over_lane[4][256];      /* what LANE bytes of zeros make of each byte of a register */

/* (register, to, from, bytes, bytes that come next or NULL) -> register */
typedef uint32_t (*crc_function)(uint32_t, uint8_t *, const uint8_t *, size_t, const uint8_t *);
static crc_function run_crc, run_copy; /* the first leaves its second argument alone */
static const char *crc_name;

static uint64_t word_at(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

static uint32_t crc_by_tables(uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = by_byte[7][low & 255] ^ by_byte[6][low >> 8 & 255] ^ by_byte[5][low >> 16 & 255] ^
              by_byte[4][low >> 24] ^ by_byte[3][p[4]] ^ by_byte[2][p[5]] ^ by_byte[1][p[6]] ^ by_byte[0][p[7]];
    }
    while (n--)
        crc = by_byte[0][(crc ^ *p++) & 255] ^ crc >> 8;
    return crc;
}

static uint32_t check_by_tables(uint32_t crc, uint8_t *to, const uint8_t *from, size_t n, const uint8_t *next)
{
    (void)to, (void)next;
    return crc_by_tables(crc, from, n);
}

static uint32_t copy_by_tables(uint32_t crc, uint8_t *to, const uint8_t *from, size_t n, const uint8_t *next)
{
    (void)next;
    memcpy(to, from, n);
    return crc_by_tables(crc, to, n);
}

static uint32_t over_a_lane(uint32_t crc)
{
    return over_lane[0][crc & 255] ^ over_lane[1][crc >> 8 & 255] ^ over_lane[2][crc >> 16 & 255] ^ over_lane[3][crc >> 24];
}

/* One body for both instruction sets, and for a checksum alone (STORE: nothing) or of bytes that are copied meanwhile:
   STEP8 and STEP1 are the instructions, TARGET lets the compiler use them. Memory is slow to answer and can be asked
   early: of samples that lie anywhere, the next is fetched while this one is copied. */
#define CRC_BY_INSTRUCTION(NAME, TARGET, STEP8, STEP1, STORE)                                                          \
    TARGET static uint32_t NAME(uint32_t crc, uint8_t *to, const uint8_t *from, size_t n, const uint8_t *next)         \
    {                                                                                                                  \
        for (; n >= 3 * LANE; to += 3 * LANE, from += 3 * LANE, n -= 3 * LANE) {                                       \
            uint32_t b = 0, c = 0;                                                                                     \
            if (next != NULL)                                                                                          \
                for (const uint8_t *line = next, *end = next += 3 * LANE; line != end; line += LINE)                   \
                    __builtin_prefetch(line);                                                                          \
            for (size_t i = 0; i < LANE; i += 8) {                                                                     \
                uint64_t x = word_at(from + i), y = word_at(from + LANE + i), z = word_at(from + 2 * LANE + i);        \
                STORE(to + i, &x, 8);                                                                                  \
                STORE(to + LANE + i, &y, 8);                                                                           \
                STORE(to + 2 * LANE + i, &z, 8);                                                                       \
                crc = (uint32_t)STEP8(crc, x);                                                                         \
                b = (uint32_t)STEP8(b, y);                                                                             \
                c = (uint32_t)STEP8(c, z);                                                                             \
            }                                                                                                          \
            crc = over_a_lane(over_a_lane(crc) ^ b) ^ c;                                                               \
        }                                                                                                              \
        for (; n >= 8; to += 8, from += 8, n -= 8) {                                                                   \
            uint64_t x = word_at(from);                                                                                \
            STORE(to, &x, 8);                                                                                          \
            crc = (uint32_t)STEP8(crc, x);                                                                             \
        }                                                                                                              \
        while (n--) {                                                                                                  \
            uint8_t x = *from++;                                                                                       \
            STORE(to++, &x, 1);                                                                                        \
            crc = STEP1(crc, x);                                                                                       \
        }                                                                                                              \
        return crc;                                                                                                    \
    }
#define NO_STORE(to, from, n) ((void)(to))

#if defined(__x86_64__)
#define SSE42 __attribute__((target("sse4.2")))
CRC_BY_INSTRUCTION(crc_by_sse42, SSE42, _mm_crc32_u64, _mm_crc32_u8, NO_STORE)
CRC_BY_INSTRUCTION(copy_by_sse42, SSE42, _mm_crc32_u64, _mm_crc32_u8, memcpy)
#elif defined(__aarch64__) && defined(__linux__)
#define ARMV8 __attribute__((target("+crc")))
CRC_BY_INSTRUCTION(crc_by_armv8, ARMV8, __crc32cd, __crc32cb, NO_STORE)
CRC_BY_INSTRUCTION(copy_by_armv8, ARMV8, __crc32cd, __crc32cb, memcpy)
#endif

static void make_tables(void)
{
    for (int byte = 0; byte < 256; byte++) {
        uint32_t crc = (uint32_t)byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        by_byte[0][byte] = crc;
    }
    for (int place = 1; place < 8; place++)
        for (int byte = 0; byte < 256; byte++)
            by_byte[place][byte] = by_byte[0][by_byte[place - 1][byte] & 255] ^ by_byte[place - 1][byte] >> 8;
    static const uint8_t zeros[LANE];
    for (int place = 0; place < 4; place++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = (uint32_t)byte << 8 * place;
            if (byte & (byte - 1)) { /* linear: of two bits, what each gives */
                uint32_t rest = (uint32_t)(byte & (byte - 1)), low = (uint32_t)byte ^ rest;
                over_lane[place][byte] = over_lane[place][rest] ^ over_lane[place][low];
                continue;
            }
            over_lane[place][byte] = crc_by_tables(crc, zeros, LANE);
        }
    run_crc = check_by_tables;
    run_copy = copy_by_tables;
    crc_name = "tables";
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) {
        run_crc = crc_by_sse42;
        run_copy = copy_by_sse42;
        crc_name = "SSE4.2";
    }
#elif defined(__aarch64__) && defined(__linux__)
    if (getauxval(AT_HWCAP) & HWCAP_CRC32) {
        run_crc = crc_by_armv8;
        run_copy = copy_by_armv8;
        crc_name = "ARMv8";
    }
#endif
}

static uint32_t extended(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~run_crc(~crc, NULL, p, n, NULL);
}

/* Copies, and checks just those bytes: others may write to where they came from. */
static uint32_t copied_crc(uint32_t crc, uint8_t *to, const uint8_t *from, size_t n, const uint8_t *next)
{
    return ~run_copy(~crc, to, from, n, next);
}
