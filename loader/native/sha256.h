/* SHA-256 (FIPS 180-4) of bytes and of their pages at once, by the instructions of x86 that are made for it.

   Both hashes take the same blocks, so words are scheduled once; rounds of one fill the time in which those of the
   other wait for their results. Elsewhere hashlib does the same in two passes. */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define SHA_BLOCK 64

static const uint32_t sha_begun[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
static const uint32_t sha_rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static int has_sha256(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSSE3) || !(c & bit_SSE4_1))
        return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}

#define WITH_SHA __attribute__((target("sha,sse4.1,ssse3")))

typedef struct {
    __m128i abef, cdgh; /* the order that the instructions want */
} Sha;

WITH_SHA static Sha sha_load(const uint32_t *state)
{
    __m128i dcba = _mm_loadu_si128((const __m128i *)state), hgfe = _mm_loadu_si128((const __m128i *)(state + 4));
    dcba = _mm_shuffle_epi32(dcba, 0xB1), hgfe = _mm_shuffle_epi32(hgfe, 0x1B);
    return (Sha){_mm_alignr_epi8(dcba, hgfe, 8), _mm_blend_epi16(hgfe, dcba, 0xF0)};
}

WITH_SHA static void sha_store(Sha from, uint32_t *state)
{
    __m128i feba = _mm_shuffle_epi32(from.abef, 0x1B), dchg = _mm_shuffle_epi32(from.cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

/* Takes blocks into two states. */
WITH_SHA static void sha_two(uint32_t *one, uint32_t *other, const uint8_t *data, size_t blocks)
{
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bll, 0x0405060700010203ll);
    Sha x = sha_load(one), y = sha_load(other);
    for (; blocks--; data += SHA_BLOCK) {
        Sha x0 = x, y0 = y;
        __m128i words[4];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i *now = &words[i & 3], last = words[(i + 3) & 3];
            if (i < 4) {
                *now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), big_endian);
            } else {
                __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(*now, words[(i + 1) & 3]),
                                            _mm_alignr_epi8(last, words[(i + 2) & 3], 4));
                *now = _mm_sha256msg2_epu32(sum, last);
            }
            __m128i two = _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *)(sha_rounds + 4 * i)));
            x.cdgh = _mm_sha256rnds2_epu32(x.cdgh, x.abef, two);
            y.cdgh = _mm_sha256rnds2_epu32(y.cdgh, y.abef, two);
            two = _mm_shuffle_epi32(two, 0x0E);
            x.abef = _mm_sha256rnds2_epu32(x.abef, x.cdgh, two);
            y.abef = _mm_sha256rnds2_epu32(y.abef, y.cdgh, two);
        }
        x.abef = _mm_add_epi32(x.abef, x0.abef), x.cdgh = _mm_add_epi32(x.cdgh, x0.cdgh);
        y.abef = _mm_add_epi32(y.abef, y0.abef), y.cdgh = _mm_add_epi32(y.cdgh, y0.cdgh);
    }
    sha_store(x, one), sha_store(y, other);
}

/* The digest of whole blocks, `nbytes` together, whose state this is. */
static void sha_digest(const uint32_t *state, uint64_t nbytes, uint8_t *digest)
{
    uint32_t ended[8], unused[8] = {0};
    uint8_t end[SHA_BLOCK] = {0x80};
    for (int i = 0; i < 8; i++)
        end[SHA_BLOCK - 1 - i] = (uint8_t)(nbytes * 8 >> 8 * i);
    memcpy(ended, state, sizeof ended);
    sha_two(ended, unused, end, 1);
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t)(ended[i / 4] >> (24 - 8 * (i % 4)));
}

/* Takes bytes into a state, and writes the digest of each of their pages, the last of which may be shorter. */
static void sha_pages(uint32_t *state, const uint8_t *data, size_t nbytes, size_t page, uint8_t *digests)
{
    for (size_t at = 0; at < nbytes; at += page, digests += 32) {
        size_t size = nbytes - at < page ? nbytes - at : page;
        uint32_t own[8];
        memcpy(own, sha_begun, sizeof own);
        sha_two(state, own, data + at, size / SHA_BLOCK);
        sha_digest(own, size, digests);
    }
}
#endif
