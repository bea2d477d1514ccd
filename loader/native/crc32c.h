/* CRC-32C, of bytes alone or of bytes that are copied meanwhile: by VPCLMULQDQ, SSE4.2, ARMv8 or tables, as the
   processor can. A copy may go past the processor's cache: of many bytes none would still be there when they are read.

   Castagnoli's polynomial, bits reversed; registers are kept inverted, as the instructions do. Call make_tables first. */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
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

/* Ways to compute it. check leaves its second argument alone; stream copies past the cache, to whole vectors. */
typedef struct {
    const char *name;
    crc_function check, copy, stream;
} CrcMeans;
static CrcMeans crc_means[3]; /* that this processor has, the fastest first */
static CrcMeans crc_run;      /* the first of them */

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

#if defined(__clang__) || __GNUC__ >= 8 /* older compilers do not have the intrinsics */
#define FOLDS
/* Folding: multiplied by a power of x, 128 bits of a message stand for bytes that lie farther on, and are added there.
   Eight registers of 32 bytes have the time to answer; in the end the instruction above takes what is left of them.
   Copies of rows of 8 KiB out of memory ran at 29 GB/s, by the instruction alone at 23 (Zen 5, one core). */
#define FOLDED 256
#define VECTOR 32
#define VPCLMUL __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.2")))

static uint64_t over_bytes[3][2]; /* powers that carry the two words of 16 bytes over FOLDED, VECTOR or 16 bytes */

VPCLMUL static inline __m256i words_of(const uint64_t *powers)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)powers));
}

VPCLMUL static inline __m256i folded(__m256i x, __m256i powers, __m256i next)
{
    __m256i low = _mm256_clmulepi64_epi128(x, powers, 0x00), high = _mm256_clmulepi64_epi128(x, powers, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

#define CRC_BY_FOLDING(NAME, STORE, REST)                                                                              \
    VPCLMUL static uint32_t NAME(uint32_t crc, uint8_t *to, const uint8_t *from, size_t n, const uint8_t *next)        \
    {                                                                                                                  \
        if (n < 2 * FOLDED)                                                                                            \
            return REST(crc, to, from, n, next);                                                                       \
        __m256i powers = words_of(over_bytes[0]), x[FOLDED / VECTOR], y = _mm256_setzero_si256();                      \
        for (size_t i = 0; i < FOLDED; i += VECTOR) {                                                                  \
            x[i / VECTOR] = _mm256_loadu_si256((const void *)(from + i));                                              \
            STORE((void *)(to + i), x[i / VECTOR]);                                                                    \
        }                                                                                                              \
        x[0] = _mm256_xor_si256(x[0], _mm256_set_epi64x(0, 0, 0, (long long)crc));                                     \
        for (to += FOLDED, from += FOLDED, n -= FOLDED; n >= FOLDED; to += FOLDED, from += FOLDED, n -= FOLDED) {      \
            if (next != NULL)                                                                                          \
                for (const uint8_t *line = next, *end = next += FOLDED; line != end; line += LINE)                     \
                    __builtin_prefetch(line);                                                                          \
            for (size_t i = 0; i < FOLDED; i += VECTOR) {                                                              \
                __m256i bytes = _mm256_loadu_si256((const void *)(from + i));                                          \
                STORE((void *)(to + i), bytes);                                                                        \
                x[i / VECTOR] = folded(x[i / VECTOR], powers, bytes);                                                  \
            }                                                                                                          \
        }                                                                                                              \
        for (size_t i = 0; i < FOLDED / VECTOR; i++)                                                                   \
            y = folded(y, words_of(over_bytes[1]), x[i]);                                                              \
        y = folded(y, words_of(over_bytes[2]), _mm256_permute4x64_epi64(y, 0xee));                                     \
        crc = (uint32_t)_mm_crc32_u64(0, (uint64_t)_mm256_extract_epi64(y, 0));                                        \
        crc = (uint32_t)_mm_crc32_u64(crc, (uint64_t)_mm256_extract_epi64(y, 1));                                      \
        return REST(crc, to, from, n, NULL);                                                                           \
    }
#define NO_VECTOR(to, bytes) ((void)0)
CRC_BY_FOLDING(crc_by_vpclmul, NO_VECTOR, crc_by_sse42)
CRC_BY_FOLDING(copy_by_vpclmul, _mm256_storeu_si256, copy_by_sse42)
CRC_BY_FOLDING(stream_by_vpclmul, _mm256_stream_si256, copy_by_sse42)

/* x to this power, modulo the polynomial. */
static uint64_t power_of_x(int exponent)
{
    uint32_t x = 0x80000000u; /* 1 */
    while (exponent--)
        x = x >> 1 ^ (x & 1 ? POLYNOMIAL : 0);
    return x;
}

static int has_vpclmul(void)
{
    static const int bytes[] = {FOLDED, VECTOR, 16};
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx2") || !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_PCLMUL) ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(c >> 10 & 1))
        return 0;
    for (int i = 0; i < 3; i++) {
        over_bytes[i][0] = power_of_x(8 * bytes[i] + 31);
        over_bytes[i][1] = power_of_x(8 * bytes[i] - 33);
    }
    return 1;
}
#endif
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
    int n = 0;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) {
#if defined(FOLDS)
        if (has_vpclmul())
            crc_means[n++] = (CrcMeans){"VPCLMULQDQ", crc_by_vpclmul, copy_by_vpclmul, stream_by_vpclmul};
#endif
        crc_means[n++] = (CrcMeans){"SSE4.2", crc_by_sse42, copy_by_sse42, copy_by_sse42};
    }
#elif defined(__aarch64__) && defined(__linux__)
    if (getauxval(AT_HWCAP) & HWCAP_CRC32)
        crc_means[n++] = (CrcMeans){"ARMv8", crc_by_armv8, copy_by_armv8, copy_by_armv8};
#endif
    crc_means[n] = (CrcMeans){"tables", check_by_tables, copy_by_tables, copy_by_tables};
    crc_run = crc_means[0];
}

static uint32_t extended(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~crc_run.check(~crc, NULL, p, n, NULL);
}

/* Copies, and checks just those bytes: others may write to where they came from. past_cache: see `copies_done`. */
static uint32_t copied_crc(uint32_t crc, uint8_t *to, const uint8_t *from, size_t n, const uint8_t *next, int past_cache)
{
    int stream = past_cache && ((uintptr_t)to & 31) == 0; /* whole vectors */
    return ~(stream ? crc_run.stream : crc_run.copy)(~crc, to, from, n, next);
}

/* Has other threads see what was copied past the cache. */
static void copies_done(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
